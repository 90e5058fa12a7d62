//! Tools that work in the transaction in which their result is recorded: exactly once, for SQL alone.

use std::future::Future;
use std::time::Duration;

use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::erased::{DynTool, Ran, come_to, rule, spec_of};
use crate::provider::ToolSpec;
use crate::store::conn::Conn;
use crate::tool::{Approval, OnInterrupt, ToolContext, ToolResult};

/// A tool whose work and whose result commit together: what it writes through `conn` is there exactly if the model reads
/// its result, whatever dies in between.
///
/// It holds a connection and locks while it runs, so it is for SQL alone: no other service is to be asked from it.
/// An error, a question or a run beyond [`TIME_LIMIT`](TransactionalTool::TIME_LIMIT) undoes what it wrote; ask before
/// writing all the same, so that nobody waits for locks that are given up anyway. A crash before the commit leaves
/// nothing, and the tool runs again.
///
/// ```
/// use askback::{Conn, ToolContext, ToolResult, TransactionalTool, confirm, sqlx};
///
/// struct Refund;
///
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct RefundArgs {
///     cents: i64,
/// }
///
/// impl TransactionalTool for Refund {
///     const NAME: &str = "refund";
///     const DESCRIPTION: &str = "Refund an amount";
///     type Args = RefundArgs;
///     type Output = i64;
///
///     async fn call(&self, ctx: ToolContext, args: RefundArgs, conn: &mut Conn<'_>) -> ToolResult<i64> {
///         ctx.ask(confirm(format!("Refund {} cents?", args.cents)))?;
///         let Conn::Postgres(conn) = conn else { return Err("this shop runs on PostgreSQL".into()) };
///         sqlx::query("insert into refunds (cents) values ($1)").bind(args.cents).execute(&mut **conn).await?;
///         Ok(args.cents)
///     }
/// }
/// ```
pub trait TransactionalTool: Send + Sync + 'static {
    /// The name the model calls.
    const NAME: &str;
    /// What it does, for the model.
    const DESCRIPTION: &str;
    /// How long its transaction may stay open.
    const TIME_LIMIT: Duration = Duration::from_secs(5);
    /// Its arguments; their JSON Schema goes to the model.
    type Args: DeserializeOwned + JsonSchema + Send;
    /// What the model reads, as JSON.
    type Output: Serialize;

    /// Whether a call with these arguments needs an approval before it runs. As [`Tool::approval`](crate::Tool::approval).
    fn approval(&self, args: &Self::Args) -> Approval {
        let _ = args;
        Approval::Free
    }

    /// Does the work on `conn`, whose transaction is open; it must not end that.
    ///
    /// # Errors
    /// An error undoes what was written and is the call's result.
    fn call(
        &self,
        ctx: ToolContext,
        args: Self::Args,
        conn: &mut Conn<'_>,
    ) -> impl Future<Output = ToolResult<Self::Output>> + Send;
}

pub(crate) struct Transacting<T> {
    tool: T,
    spec: ToolSpec,
}

impl<T: TransactionalTool> Transacting<T> {
    pub(crate) fn new(tool: T) -> Self {
        Self { tool, spec: spec_of::<T::Args>(T::NAME, T::DESCRIPTION) }
    }
}

impl<T: TransactionalTool> DynTool for Transacting<T> {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    /// What did not commit was not done.
    fn on_interrupt(&self) -> OnInterrupt {
        OnInterrupt::Retry
    }

    fn approval(&self, arguments: &str) -> Result<Approval, String> {
        rule(arguments, |args| self.tool.approval(args))
    }

    fn run(&self, _: ToolContext, _: String) -> BoxFuture<'_, Ran> {
        let message = format!("the tool {} needs its transaction", T::NAME);
        Box::pin(async move { Ran::Failed { message, error: None } })
    }

    fn transaction(&self) -> Option<Duration> {
        Some(T::TIME_LIMIT)
    }

    fn run_in<'a>(&'a self, ctx: ToolContext, arguments: String, conn: &'a mut Conn<'_>) -> BoxFuture<'a, Ran> {
        let mut conn = conn.reborrow();
        Box::pin(async move {
            let (conn, lent) = (&mut conn, ctx.clone());
            come_to(T::NAME, &ctx, &arguments, move |args| self.tool.call(lent, args, conn)).await
        })
    }
}
