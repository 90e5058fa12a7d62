-- The shop's own tables. They run after askback's, so that they may reference those.

create table orders (
    id          text    not null,             -- what a customer reads on the parcel
    customer    text    not null,             -- whose order it is
    item        text    not null,             -- what was bought
    size        text    not null,             -- in which size
    cents       integer not null,             -- what was paid
    parcel_note text    not null default '',  -- what the parcel says, after an exchange
    constraint orders_pk primary key (id)
) strict;

create table conversations (
    chat      blob    not null,  -- askback's chat
    customer  text    not null,  -- who wrote
    subject   text    not null,  -- how it began
    opened_at text    not null,  -- when
    constraint conversations_pk primary key (chat),
    constraint conversations_chat foreign key (chat) references askback_chats (id)
) strict;

create table refunds (
    tool_call blob    not null,  -- the call that refunded: the idempotency key, so no call books twice
    order_id  text    not null,  -- for which order
    cents     integer not null,  -- how much
    reason    text    not null,  -- why, in the model's words
    booked_at text    not null,  -- when the bank took it
    constraint refunds_once primary key (tool_call),
    constraint refunds_call foreign key (tool_call) references askback_tool_calls (id),
    constraint refunds_order foreign key (order_id) references orders (id)
) strict;

insert into orders (id, customer, item, size, cents) values
    ('A-1001', 'Carl', 'Rain jacket', 'L', 7990),
    ('A-1002', 'Carl', 'Hiking trousers', 'M', 6450),
    ('A-1003', 'Carl', 'Wool socks', 'M', 1250),
    ('A-1004', 'Carl', 'Down sleeping bag', 'M', 18900);
