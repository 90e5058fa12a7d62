//! The log below: what people decided in this chat, and what stands in the shop's own tables.

use askback::{Decision, Transcript};

use crate::cards::verdict;
use crate::html::Html;
use crate::shop::{Order, Refund, dollars};
use crate::view::{Desk, time, who};

/// The three panels.
pub(crate) fn panels(desk: &Desk) -> Html {
    let decided = desk.open.as_ref().map(|open| {
        let newest_first = open.decisions.iter().rev().take(50);
        newest_first.map(|decision| decided(decision, &open.transcript)).collect::<Vec<_>>()
    });
    let refunds = desk.refunds.iter().map(refunded).collect();
    let orders = desk.orders.iter().map(|order| ordered(order, &desk.refunds)).collect();
    [
        table(
            "decisions",
            "Decisions in this chat",
            &["When", "Who", "About", "What", "Via"],
            decided.unwrap_or_default(),
            "Nobody has decided anything here yet.",
        ),
        table(
            "refunds",
            "The table refunds",
            &["Booked", "Order", "Amount", "Tool call (unique)"],
            refunds,
            "No money went back yet. A refund writes its row here, once per tool call.",
        ),
        table(
            "orders",
            "Carl's orders",
            &["Order", "Item", "Size", "Paid", "Refunded"],
            orders,
            "There are no orders.",
        ),
    ]
    .into_iter()
    .collect()
}

fn table(id: &str, title: &str, heads: &[&str], rows: Vec<Html>, empty: &str) -> Html {
    let body = match rows.is_empty() {
        true => html!(r#"<p class="empty">{empty}</p>"#, empty = empty),
        false => html!(
            r#"<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"#,
            heads = heads.iter().map(|head| html!("<th>{head}</th>", head = head)).collect::<Html>(),
            rows = rows.into_iter().collect::<Html>()
        ),
    };
    html!(
        r#"<section class="panel" id="{id}" data-live><header><h2>{title}</h2></header>{body}</section>"#,
        id = id,
        title = title,
        body = body
    )
}

fn decided(decision: &Decision, transcript: &Transcript) -> Html {
    let call = transcript.calls.iter().find(|call| call.id == decision.question.call());
    let about = match decision.question.key() {
        "" => "approval",
        key if key.starts_with("askback:") => "run it again?",
        key => key,
    };
    html!(
        "<tr><td>{at}</td><td>{by}</td><td><code>{tool}</code> {about}</td><td>{what}</td><td>{via}</td></tr>",
        at = time(decision.at),
        by = who(&decision.by),
        tool = call.map(|call| call.name.as_str()).unwrap_or("?"),
        about = about,
        what = verdict(decision),
        via = decision.via.as_deref().unwrap_or("")
    )
}

fn refunded(refund: &Refund) -> Html {
    let call = refund.tool_call.to_string();
    html!(
        r#"<tr><td>{at}</td><td>{order}</td><td title="{reason}">{amount}</td><td><code title="{call}">…{short}</code></td></tr>"#,
        at = time(refund.booked_at),
        order = refund.order_id,
        reason = refund.reason,
        amount = dollars(refund.cents),
        short = call.chars().skip(24).collect::<String>(),
        call = call
    )
}

fn ordered(order: &Order, refunds: &[Refund]) -> Html {
    let back: i64 = refunds.iter().filter(|refund| refund.order_id == order.id).map(|refund| refund.cents).sum();
    html!(
        r#"<tr><td>{id}</td><td>{item}</td><td title="{note}">{size}</td><td>{paid}</td><td>{back}</td></tr>"#,
        id = order.id,
        item = order.item,
        note = order.parcel_note,
        size = order.size,
        paid = dollars(order.cents),
        back = if back == 0 { "–".to_owned() } else { dollars(back) }
    )
}
