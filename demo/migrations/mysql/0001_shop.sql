-- The shop's own tables. They run after askback's, so that they may reference those.

create table orders (
    id          varchar(20)  not null,             -- what a customer reads on the parcel
    customer    varchar(40)  not null,             -- whose order it is
    item        varchar(100) not null,             -- what was bought
    size        varchar(10)  not null,             -- in which size
    cents       bigint       not null,             -- what was paid
    parcel_note varchar(500) not null default '',  -- what the parcel says, after an exchange
    constraint orders_pk primary key (id)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

create table conversations (
    chat      binary(16)   not null,  -- askback's chat
    customer  varchar(40)  not null,  -- who wrote
    subject   varchar(200) not null,  -- how it began
    opened_at datetime(6)  not null,  -- when
    constraint conversations_pk primary key (chat),
    constraint conversations_chat foreign key (chat) references askback_chats (id)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

create table refunds (
    tool_call binary(16)   not null,  -- the call that refunded: the idempotency key, so no call books twice
    order_id  varchar(20)  not null,  -- for which order
    cents     bigint       not null,  -- how much
    reason    varchar(500) not null,  -- why, in the model's words
    booked_at datetime(6)  not null,  -- when the bank took it
    constraint refunds_once primary key (tool_call),
    constraint refunds_call foreign key (tool_call) references askback_tool_calls (id),
    constraint refunds_order foreign key (order_id) references orders (id)
) engine = InnoDB default character set utf8mb4 collate utf8mb4_bin;

insert into orders (id, customer, item, size, cents) values
    ('A-1001', 'Carl', 'Rain jacket', 'L', 7990),
    ('A-1002', 'Carl', 'Hiking trousers', 'M', 6450),
    ('A-1003', 'Carl', 'Wool socks', 'M', 1250),
    ('A-1004', 'Carl', 'Down sleeping bag', 'M', 18900);
