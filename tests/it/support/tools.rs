//! Tools that leave a trace in the ledger.

use askback::{Approval, OnInterrupt, Pool, Tool, ToolContext, ToolResult, choice, confirm, sqlx, text};
use serde_json::{Value, json};

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
