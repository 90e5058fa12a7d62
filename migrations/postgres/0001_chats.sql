-- Rows of a chat live together: every key starts with the chat, except where an
-- app's own foreign key wants one column (`unique (id)`).
-- Timestamps are UTC, cut to microseconds. What a provider or a tool said is
-- text and comes back byte for byte; jsonb only for what a statement looks into.

create table if not exists askback_chats (
    id                  uuid        not null,               -- UUIDv7, ours or passed in by the app
    tenant              text        not null default '',    -- whose chat it is; '' when the app has one tenant
    agent               text        not null,               -- Agent::NAME: which registered agent builds the chat again
    action              text        not null default '',    -- the agent's action; '' for an agent with one
    arguments           text        not null,               -- the agent's own fields, JSON text
    actor               text        not null,               -- on whose behalf the agent acts
    service             text,                               -- who served the last turn, say 'anthropic'
    api                 text,                               -- the wire it spoke, say 'anthropic_messages'
    model               text,                               -- the model as it was requested
    generation_no       bigint      not null default 0,     -- counts up with each user message
    tool_turns          bigint      not null default 0,     -- turns with tool calls in this generation
    tool_choice_cleared boolean     not null default false, -- a turn of this generation has used up a forced tool_choice
    state               text        not null default 'idle',-- as the last driver left it; 'ready' also while one drives
    next_position       bigint      not null default 0,     -- the position the next message gets; fences appends
    lease_token         uuid,                               -- who drives it now; random, new with each lease
    lease_until         timestamptz,                        -- until when, by this database's clock
    lease_epoch         bigint      not null default 0,     -- counts leases, for people to read
    cancel_generation   bigint,                             -- the generation that somebody cancelled
    failures            bigint      not null default 0,     -- failed drives since the last that got on
    not_before          timestamptz,                        -- no worker takes it earlier (back-off)
    last_error          text,                               -- why the last drive failed, for people to read
    metadata            jsonb,                              -- the app's own
    created_at          timestamptz not null,               -- when the chat was started
    updated_at          timestamptz not null,               -- when its state last changed
    constraint askback_chats_pk primary key (id),
    constraint askback_chats_state check (state in ('idle', 'ready', 'waiting', 'failed'))
);
-- The state query starts here: only chats that somebody should drive, or drives.
create index if not exists askback_chats_ready on askback_chats (id) where state = 'ready';

create table if not exists askback_messages (
    chat_id       uuid        not null,  -- the chat
    position      bigint      not null,  -- its place in the chat, from 0, without gaps
    id            uuid        not null,  -- UUIDv7
    role          text        not null,  -- 'user' or 'assistant'
    content       text        not null,  -- the plain text, for reading and for another provider; NUL shows as U+FFFD
    items         text,                  -- the turn exactly as the provider sent it, JSON text
    service       text,                  -- who sent it
    api           text,                  -- in which wire format the items are
    model         text,                  -- the model that was asked
    finish_reason text,                  -- the provider's own word
    created_at    timestamptz not null,  -- when it was saved
    constraint askback_messages_pk primary key (chat_id, position),
    constraint askback_messages_id unique (id),
    constraint askback_messages_role check (role in ('user', 'assistant')),
    constraint askback_messages_chat foreign key (chat_id) references askback_chats (id)
);

create table if not exists askback_tool_calls (
    chat_id          uuid        not null,                  -- the chat
    message_id       uuid        not null,                  -- the turn that made the call
    message_position bigint      not null,                  -- and its place in the chat
    position         bigint      not null,                  -- its place in the turn, from 0
    id               uuid        not null,                  -- UUIDv7; what questions, results and the API name
    wire_id          text        not null,                  -- the provider's id, unique nowhere
    name             text        not null,                  -- the tool as the model called it
    origin           text        not null default 'agent',  -- who offers the tool: agent, delegation, mcp:<server>, remote
    arguments        text,                                  -- the JSON object the model sent; null when it was none
    raw_arguments    text,                                  -- a JSON string of what it sent instead
    approval         text,                                  -- the gate, decided when the turn was saved; null = no gate
    questions        jsonb       not null default '[]',     -- the questions with their decisions, in the order they were asked
    open_count       bigint      not null default 0,        -- how many of them have no decision
    next_expiry      timestamptz,                           -- the earliest deadline of an open one
    mcp_state        text,                                  -- an MCP server's opaque state between two rounds
    state            text        not null,                  -- where the call stands
    result           text,                                  -- what the model reads, JSON text
    result_kind      text,                                  -- how it ended; null = the call is open
    run_token        uuid,                                  -- which run may write the result
    attempts         bigint      not null default 0,        -- how often the tool was started
    created_at       timestamptz not null,                  -- when the turn was saved
    updated_at       timestamptz not null,                  -- when the row last changed
    constraint askback_tool_calls_pk primary key (chat_id, id),
    constraint askback_tool_calls_id unique (id),
    constraint askback_tool_calls_state check (state in ('ready', 'waiting', 'running', 'done')),
    constraint askback_tool_calls_approval check (approval in ('pending', 'approved', 'remembered', 'declined')),
    constraint askback_tool_calls_result check (result_kind in ('value', 'declined', 'error', 'unfinished', 'cancelled')),
    constraint askback_tool_calls_done check ((state = 'done') = (result_kind is not null)),
    constraint askback_tool_calls_message foreign key (chat_id, message_position) references askback_messages (chat_id, position)
);
-- Listing and continuing a chat read its open calls only, however long it is.
create index if not exists askback_tool_calls_open on askback_tool_calls (chat_id, message_position, position) where result_kind is null;
-- The state query: calls that became ready under their own lock, and deadlines.
create index if not exists askback_tool_calls_ready on askback_tool_calls (chat_id) where state = 'ready';
create index if not exists askback_tool_calls_expiry on askback_tool_calls (next_expiry) where state = 'waiting' and next_expiry is not null;

create table if not exists askback_decisions (
    chat_id  uuid        not null,  -- the chat
    call_id  uuid        not null,  -- the call whose question was decided
    question text        not null,  -- the question's key; '' for the gate
    digest   text        not null,  -- what was asked, tool and arguments included; new with each round
    decision text        not null,  -- accept, decline or cancel
    value    text,                  -- the answer, JSON text; never a secret's
    note     text,                  -- why, in the person's words
    by_whom  text        not null,  -- 'person:<name>', 'service:<name>' or 'system:<reason>'
    via      text,                  -- from where: a page, an address, a channel
    idem     text,                  -- the idempotency key of the answer
    at       timestamptz not null,  -- when, by this database's clock, read under the lock
    constraint askback_decisions_pk primary key (chat_id, call_id, question, digest),
    constraint askback_decisions_decision check (decision in ('accept', 'decline', 'cancel')),
    -- The call only: a lock on the chat's row here would wait for its driver.
    constraint askback_decisions_call foreign key (chat_id, call_id) references askback_tool_calls (chat_id, id)
);

create table if not exists askback_usages (
    chat_id          uuid        not null,  -- the chat
    id               uuid        not null,  -- UUIDv7, in the order of the attempts
    message_position bigint,                -- the message it paid for; null when the attempt gave none
    service          text        not null,  -- who was asked
    model            text        not null,  -- the model that was asked
    input_tokens     bigint,                -- tokens in the request, as the provider counted
    output_tokens    bigint,                -- tokens in the reply
    cache_read       bigint,                -- of the input: read from a cache
    cache_write      bigint,                -- of the input: written to a cache
    reasoning        bigint,                -- of the output: spent on reasoning
    cost             double precision,      -- in US dollars, where it is known
    created_at       timestamptz not null,  -- when the attempt ended
    constraint askback_usages_pk primary key (chat_id, id),
    constraint askback_usages_chat foreign key (chat_id) references askback_chats (id)
);
