//! Tools that leave a trace in the ledger.

use askback::provider::{Entry, scripted::Scripted};
use askback::{
    Approval, By, Chat, OnInterrupt, Outcome, Pool, Question, Settled, Tool, ToolContext, ToolResult, choice, confirm,
    sqlx, text,
};
use serde_json::{Value, json};

use crate::support::TestDb;

/// No arguments, and none refused.
#[derive(serde::Deserialize, schemars::JsonSchema)]
pub struct Nothing {}

/// Writes one row for a real side effect.
pub async fn note(pool: &Pool, ctx: &ToolContext, what: &str) -> Result<(), sqlx::Error> {
    let (call, sql) = (ctx.call_id().to_string(), "insert into ledger (call_id, what) values (?, ?)");
    match pool {
        Pool::Postgres(pool) => {
            let sql = "insert into ledger (call_id, what) values ($1, $2)";
            sqlx::query(sql).bind(call).bind(what).execute(pool).await.map(drop)
        }
        Pool::MySql(pool) => sqlx::query(sql).bind(call).bind(what).execute(pool).await.map(drop),
        Pool::Sqlite(pool) => sqlx::query(sql).bind(call).bind(what).execute(pool).await.map(drop),
        _ => unreachable!(),
    }
}

/// Asks for a yes, then acts.
pub struct Refund(pub Pool);
impl Tool for Refund {
    const NAME: &str = "refund";
    const DESCRIPTION: &str = "Refunds";
    type Args = Nothing;
    type Output = Value;
    async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<Value> {
        ctx.ask(confirm("Refund?"))?;
        note(&self.0, &ctx, "refund").await?;
        Ok(json!({ "refunded": true }))
    }
}

/// Acts at once.
pub struct Free(pub Pool);
impl Tool for Free {
    const NAME: &str = "free";
    const DESCRIPTION: &str = "Needs nobody";
    type Args = Nothing;
    type Output = String;
    async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<String> {
        note(&self.0, &ctx, "free").await?;
        Ok("free".into())
    }
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
pub struct Amount {
    pub amount: i64,
}

/// Needs an approval over 100.
pub struct Pay(pub Pool);
impl Tool for Pay {
    const NAME: &str = "pay";
    const DESCRIPTION: &str = "Pays";
    type Args = Amount;
    type Output = i64;
    fn approval(&self, args: &Amount) -> Approval {
        if args.amount > 100 { Approval::Required } else { Approval::Free }
    }
    async fn call(&self, ctx: ToolContext, args: Amount) -> ToolResult<i64> {
        assert_eq!(ctx.input_answer(), None, "an approval is no answer");
        note(&self.0, &ctx, &format!("pay {}", args.amount)).await?;
        Ok(args.amount)
    }
}

/// Asks two questions at once.
pub struct Exchange(pub Pool);
impl Tool for Exchange {
    const NAME: &str = "exchange";
    const DESCRIPTION: &str = "Exchanges";
    type Args = Nothing;
    type Output = Value;
    async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<Value> {
        let size = ctx.ask(choice::<String>("Which size?", [("S", "Small"), ("M", "Middle")]).key("size"));
        let wish = ctx.ask(text("Any wish?").key("wish"));
        let (size, wish) = (size?, wish?);
        note(&self.0, &ctx, &format!("exchange {size} {wish}")).await?;
        Ok(json!({ "size": size, "wish": wish }))
    }
}

/// Fails.
pub struct Raises;
impl Tool for Raises {
    const NAME: &str = "raises";
    const DESCRIPTION: &str = "Fails";
    type Args = Nothing;
    type Output = Value;
    async fn call(&self, _: ToolContext, _: Nothing) -> ToolResult<Value> {
        Err(std::io::Error::other("the bank is closed").into())
    }
}

/// Panics.
pub struct Panics;
impl Tool for Panics {
    const NAME: &str = "panics";
    const DESCRIPTION: &str = "Panics";
    type Args = Nothing;
    type Output = Value;
    async fn call(&self, _: ToolContext, _: Nothing) -> ToolResult<Value> {
        panic!("secret detail")
    }
}

/// Returns JSON null.
pub struct Null;
impl Tool for Null {
    const NAME: &str = "null";
    const DESCRIPTION: &str = "Returns null";
    type Args = Nothing;
    type Output = Option<i64>;
    async fn call(&self, _: ToolContext, _: Nothing) -> ToolResult<Option<i64>> {
        Ok(None)
    }
}

/// A tool of a name and an `on_interrupt`, whose body notes that it began, waits, and notes that it ended.
macro_rules! slow_tool {
    ($name:ident, $tool:literal, $on:ident) => {
        pub struct $name(pub Pool, pub std::time::Duration);
        impl Tool for $name {
            const NAME: &str = $tool;
            const DESCRIPTION: &str = "Takes its time";
            const ON_INTERRUPT: OnInterrupt = OnInterrupt::$on;
            type Args = Nothing;
            type Output = i64;
            async fn call(&self, ctx: ToolContext, _: Nothing) -> ToolResult<i64> {
                note(&self.0, &ctx, "began").await?;
                tokio::time::sleep(self.1).await;
                note(&self.0, &ctx, "ended").await?;
                Ok(ctx.attempt())
            }
        }
    };
}
slow_tool!(SlowAsk, "slow_ask", Ask);
slow_tool!(SlowRetry, "slow_retry", Retry);
slow_tool!(SlowFail, "slow_fail", Fail);

/// A tool of a name whose body a test writes: `tool!(Type, "name", Args => Output, |pool, ctx, args| body)`.
#[macro_export]
macro_rules! tool {
    ($name:ident, $tool:literal, $args:ty => $output:ty, |$pool:ident, $ctx:ident, $in:ident| $body:expr) => {
        pub struct $name(pub askback::Pool);
        impl askback::Tool for $name {
            const NAME: &str = $tool;
            const DESCRIPTION: &str = "Of a test";
            type Args = $args;
            type Output = $output;
            async fn call(&self, $ctx: askback::ToolContext, $in: $args) -> askback::ToolResult<$output> {
                let $pool = &self.0;
                let _ = (&$pool, &$ctx, &$in);
                $body
            }
        }
    };
}

/// Any JSON object as arguments.
pub type Anything = serde_json::Map<String, Value>;

/// What the model read, in the order of the calls: `(tool, result)` of the last turn of the last request.
pub fn read(model: &Scripted) -> Vec<(String, String)> {
    let requests = model.requests();
    let turn = requests.last().and_then(|request| {
        request.history.iter().rev().find_map(|entry| match entry {
            Entry::Turn { calls, .. } => Some(calls.clone()),
            _ => None,
        })
    });
    turn.unwrap_or_default().into_iter().map(|call| (call.name, call.result)).collect()
}

/// The results on the rows, in the order of the calls.
pub async fn results(db: &TestDb, chat: &Chat) -> Vec<String> {
    let calls = chat.transcript(&db.pool).await.unwrap().calls;
    calls.into_iter().map(|call| call.result.unwrap_or_else(|| format!("{:?}", call.state))).collect()
}

/// The open questions.
pub async fn open(db: &TestDb, chat: &Chat) -> Vec<Question> {
    chat.pending_questions(&db.pool).await.unwrap()
}

/// Answers as Ann; the answer must be recorded.
pub async fn answer(db: &TestDb, chat: &Chat, question: &Question, value: impl Into<Value>) {
    let settled = chat.answer(&db.pool, &question.id, value, By::person("ann")).await.unwrap();
    assert_eq!(settled, Settled::Recorded);
}

/// Drives until people are needed, and says which questions are open then.
pub async fn park(db: &TestDb, chat: &Chat) -> Vec<Question> {
    assert_eq!(chat.complete().await.unwrap(), Outcome::Waiting);
    open(db, chat).await
}

/// Drives to the end.
pub async fn finish(chat: &Chat) {
    assert_eq!(chat.complete().await.unwrap(), Outcome::Done);
}
