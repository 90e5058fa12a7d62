//! The agent of the desk, and its three tools.

use std::time::Duration;

use askback::{
    Agent, AgentContext, Approval, BoxError, Model, OnInterrupt, Setup, Tool, ToolContext, ToolError, ToolResult,
    choice, text,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::app::STAFF_ROLE;
use crate::shop::{Order, Shop, dollars};

/// Up to this amount the model may refund by itself.
const FREE_CENTS: i64 = 2000;
/// How long the note for a parcel may be thought about.
const NOTE_TIME: Duration = Duration::from_secs(15 * 60);
/// What the parcel says if nobody writes a note in that time.
const NOTE_DEFAULT: &str = "With our apologies.";

/// The agent of a conversation; its fields stand on the chat's row.
#[derive(Serialize, Deserialize)]
pub(crate) struct Support {
    /// Who is helped.
    pub(crate) customer: String,
}

/// What the worker lends the agent.
pub(crate) struct Lent {
    /// The shop's tables.
    pub(crate) shop: Shop,
    /// The model.
    pub(crate) model: Model,
    /// How long the bank takes for a refund.
    pub(crate) slow: Duration,
}

impl Agent for Support {
    const NAME: &str = "support";
    type App = Lent;

    async fn setup(&self, lent: &Lent, _ctx: &AgentContext) -> Result<Setup, BoxError> {
        let instructions = format!(
            "You are the support desk of a small outdoor shop and talk to {}. Look an order up before you act on it. \
             Refund what was paid unless the customer names another amount; amounts are in cents. Call the tools right \
             away: colleagues approve and decide by themselves. Never ask for a size, the exchange tool does. When a \
             result is an error or a decline, say so and give the note. Be short and friendly.",
            self.customer
        );
        Ok(Setup::new(lent.model.clone())
            .instructions(instructions)
            .tool(LookUpOrder { shop: lent.shop.clone() })
            .tool(RefundOrder { shop: lent.shop.clone(), slow: lent.slow })
            .tool(Exchange { shop: lent.shop.clone() }))
    }
}

/// Reads an order. It changes nothing, so after a crash it simply runs again.
struct LookUpOrder {
    shop: Shop,
}

/// Which order.
#[derive(Deserialize, JsonSchema)]
struct OrderArgs {
    /// The number of the order, say A-1001.
    order: String,
}

impl Tool for LookUpOrder {
    const NAME: &str = "look_up_order";
    const DESCRIPTION: &str = "Look up an order of the customer";
    const ON_INTERRUPT: OnInterrupt = OnInterrupt::Retry;
    type Args = OrderArgs;
    type Output = Value;

    async fn call(&self, ctx: ToolContext, args: OrderArgs) -> ToolResult<Value> {
        let order = find(&self.shop, &ctx, &args.order).await?;
        let refunded: i64 = self.shop.refunds_of(&order.id).await?.iter().map(|refund| refund.cents).sum();
        Ok(json!({
            "order": order.id, "item": order.item, "size": order.size,
            "paid_cents": order.cents, "refunded_cents": refunded,
        }))
    }
}

/// Gives money back. It must not happen twice, so an interrupted run is a person's to judge.
struct RefundOrder {
    shop: Shop,
    slow: Duration,
}

/// What to refund.
#[derive(Deserialize, JsonSchema)]
struct RefundArgs {
    /// The number of the order, say A-1001.
    order: String,
    /// How much, in cents.
    cents: i64,
    /// Why, in a few words.
    reason: String,
}

impl Tool for RefundOrder {
    const NAME: &str = "refund";
    const DESCRIPTION: &str = "Refund money that was paid for an order";
    const ON_INTERRUPT: OnInterrupt = OnInterrupt::Ask;
    type Args = RefundArgs;
    type Output = Value;

    /// Small amounts are free, larger ones wait for a person.
    fn approval(&self, args: &RefundArgs) -> Approval {
        match args.cents <= FREE_CENTS {
            true => Approval::Free,
            false => Approval::Required,
        }
    }

    async fn call(&self, ctx: ToolContext, args: RefundArgs) -> ToolResult<Value> {
        let order = find(&self.shop, &ctx, &args.order).await?;
        let refunds = self.shop.refunds_of(&order.id).await?;
        // What an earlier run of this very call has booked is no other refund.
        let others: i64 = refunds.iter().filter(|r| r.tool_call != ctx.call_id().0).map(|r| r.cents).sum();
        let left = order.cents - others;
        if args.cents <= 0 || args.cents > left {
            let (cents, left) = (dollars(args.cents), dollars(left));
            return Err(ToolError::new(format!(
                "{cents} cannot be refunded for order {}: {left} is left to refund",
                order.id
            )));
        }
        // A slow bank: kill the worker before or after the booking, the call's id books it once.
        tokio::time::sleep(self.slow / 2).await;
        let booked = self.shop.book(ctx.call_id(), &order.id, args.cents, &args.reason).await?;
        tokio::time::sleep(self.slow / 2).await;
        Ok(json!({
            "order": order.id, "item": order.item, "refunded_cents": args.cents, "booked_by_an_earlier_run": !booked,
        }))
    }
}

/// Sends the same thing in another size. It sets values, so running it again is harmless.
struct Exchange {
    shop: Shop,
}

impl Tool for Exchange {
    const NAME: &str = "exchange";
    const DESCRIPTION: &str = "Send another size of an order; colleagues pick the size and write a note";
    const ON_INTERRUPT: OnInterrupt = OnInterrupt::Retry;
    type Args = OrderArgs;
    type Output = Value;

    async fn call(&self, ctx: ToolContext, args: OrderArgs) -> ToolResult<Value> {
        let order = find(&self.shop, &ctx, &args.order).await?;
        let sizes = [("S", "Small"), ("M", "Medium"), ("L", "Large"), ("XL", "Extra large")];
        // Each `?` ends the tool until somebody has answered; then it runs again from its start.
        let prompt = format!("Which size of {} goes to {}?", order.item.to_lowercase(), ctx.actor());
        let size: String = ctx.ask(choice(prompt, sizes).key("size").may_role(STAFF_ROLE))?;
        let note: String = ctx.ask(
            text("What should the note in the parcel say?")
                .key("note")
                .may_role(STAFF_ROLE)
                .expires_in(NOTE_TIME)
                .default_answer(NOTE_DEFAULT),
        )?;
        let note: String = note.chars().take(500).collect();
        self.shop.exchange(ctx.actor(), &order.id, &size, &note).await?;
        Ok(json!({ "order": order.id, "item": order.item, "size": size, "parcel_note": note }))
    }
}

/// An order of the person on whose behalf the agent acts, whatever the model says.
async fn find(shop: &Shop, ctx: &ToolContext, order: &str) -> ToolResult<Order> {
    let found = shop.order(ctx.actor(), order.trim()).await?;
    found.ok_or_else(|| ToolError::new(format!("{} has no order {order}", ctx.actor())))
}
