//! A tool whose type is forgotten, and what a run of it came to.

use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::BoxError;
use crate::provider::ToolSpec;
use crate::request::InputRequest;
use crate::tool::{Approval, CURRENT, Failure, OnInterrupt, Tool, ToolContext, ToolError, ToolResult};

/// What a run of a tool came to.
#[derive(Debug)]
pub(crate) enum Ran {
    /// It returned this JSON text.
    Value(String),
    /// It asks these questions.
    Asks(Vec<(String, InputRequest)>),
    /// It failed; the model reads this text.
    Failed { message: String, error: Option<BoxError> },
    /// It did not end within its time, and was dropped wherever it was.
    TimedOut,
    /// It is over and its result is on the row: it was written in the tool's own transaction.
    #[cfg(feature = "_sql")]
    Recorded(String),
    /// The database failed; whether the result is on the row has to be read.
    #[cfg(feature = "_sql")]
    Broken(crate::error::Error),
}

/// A tool whose type is forgotten.
pub(crate) trait DynTool: Send + Sync {
    fn spec(&self) -> &ToolSpec;
    fn on_interrupt(&self) -> OnInterrupt;
    /// Whether the arguments need an approval; an error says why they do not fit the tool.
    fn approval(&self, arguments: &str) -> Result<Approval, String>;
    fn run(&self, ctx: ToolContext, arguments: String) -> BoxFuture<'_, Ran>;
    /// The time within which its transaction ends, of a tool that has one.
    #[cfg(feature = "_sql")]
    fn transaction(&self) -> Option<std::time::Duration> {
        None
    }
    /// Runs a tool that has a transaction, in it.
    #[cfg(feature = "_sql")]
    fn run_in<'a>(
        &'a self,
        ctx: ToolContext,
        arguments: String,
        conn: &'a mut crate::store::conn::Conn<'_>,
    ) -> BoxFuture<'a, Ran> {
        let _ = conn;
        self.run(ctx, arguments)
    }
}

pub(crate) struct Typed<T> {
    tool: T,
    spec: ToolSpec,
}

impl<T: Tool> Typed<T> {
    pub(crate) fn new(tool: T) -> Self {
        Self { tool, spec: spec_of::<T::Args>(T::NAME, T::DESCRIPTION) }
    }
}

impl<T: Tool> DynTool for Typed<T> {
    fn spec(&self) -> &ToolSpec {
        &self.spec
    }

    fn on_interrupt(&self) -> OnInterrupt {
        T::ON_INTERRUPT
    }

    fn approval(&self, arguments: &str) -> Result<Approval, String> {
        rule(arguments, |args| self.tool.approval(args))
    }

    fn run(&self, ctx: ToolContext, arguments: String) -> BoxFuture<'_, Ran> {
        Box::pin(async move {
            let run = come_to(T::NAME, &ctx, &arguments, |args| self.tool.call(ctx.clone(), args));
            match T::TIME_LIMIT {
                Some(limit) => tokio::time::timeout(limit, run).await.unwrap_or(Ran::TimedOut),
                None => run.await,
            }
        })
    }
}

/// A tool as the model is told of it.
pub(crate) fn spec_of<A: JsonSchema>(name: &str, description: &str) -> ToolSpec {
    ToolSpec::new(name, description, schema_of::<A>())
}

/// Asks a tool's rule whether arguments need an approval.
pub(crate) fn rule<A: DeserializeOwned>(
    arguments: &str,
    approval: impl FnOnce(&A) -> Approval,
) -> Result<Approval, String> {
    let rule = AssertUnwindSafe(|| {
        let args: A = serde_json::from_str(arguments).map_err(|e| e.to_string())?;
        Ok(approval(&args))
    });
    // A rule that fails means that approval is needed, never that the call is free.
    std::panic::catch_unwind(rule).unwrap_or(Ok(Approval::Required))
}

/// Runs a tool's body to its end: panics, errors, requests and swallowed requests are all something it came to.
pub(crate) async fn come_to<A: DeserializeOwned, O: Serialize, F: Future<Output = ToolResult<O>>>(
    tool: &str,
    ctx: &ToolContext,
    arguments: &str,
    body: impl FnOnce(A) -> F,
) -> Ran {
    let args: A = match serde_json::from_str(arguments) {
        Ok(args) => args,
        Err(e) => {
            let message = format!("the arguments do not fit the tool {tool}: {e}");
            return Ran::Failed { message, error: None };
        }
    };
    // Making the future, too, is the tool's code.
    let run = AssertUnwindSafe(async { CURRENT.scope(ctx.clone(), async { body(args).await }).await });
    let returned = run.catch_unwind().await;
    let swallowed = matches!(returned, Ok(Ok(_)));
    let result = match returned {
        Ok(Ok(output)) => serde_json::to_string(&output).map(Ran::Value).unwrap_or_else(|e| Ran::Failed {
            message: format!("the result of the tool {tool} is no JSON: {e}"),
            error: Some(e.into()),
        }),
        Ok(Err(ToolError(Failure::Error(error)))) => Ran::Failed { message: error.to_string(), error: Some(error) },
        Ok(Err(ToolError(Failure::Ask(request, key)))) => match ctx.ask_anew(*request, key) {
            Ok(()) => Ran::Asks(Vec::new()),
            Err(e) => Ran::Failed { message: e.to_string(), error: Some(e.into()) },
        },
        Err(panic) => Ran::Failed {
            message: format!("the tool {tool} failed"),
            error: Some(format!("the tool panicked: {}", panic_text(&*panic)).into()),
        },
    };
    match ctx.take_open() {
        open if open.is_empty() => result,
        open => {
            if swallowed {
                tracing::warn!(
                    chat = %ctx.chat_id(), call = %ctx.call_id(), tool,
                    "the tool returned a value although its question has no answer; the call waits"
                );
            }
            Ran::Asks(open)
        }
    }
}

/// The text of a panic, for logs only: it may hold anything.
pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&'static str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// The JSON Schema of a type, as models expect it: draft 2020-12, everything inlined.
pub(crate) fn schema_of<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|s| {
        s.meta_schema = None;
        s.inline_subschemas = true;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Value::Object(map) = &mut schema {
        map.remove("title");
        // A tool without arguments has a schema of type null or none; wires want an object.
        if map.get("type").and_then(Value::as_str) != Some("object") {
            map.insert("type".into(), "object".into());
        }
        map.entry("properties").or_insert_with(|| Value::Object(serde_json::Map::new()));
    }
    schema
}
