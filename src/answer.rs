//! What a person sends back: JSON, held to its types, or an HTML form's texts, read as what the question takes.

use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::form::{Field, FieldType};
use crate::request::{InputRequest, Kind};

/// An answer as it came in. Anything that is JSON converts into it.
///
/// ```
/// use askback::Answer;
///
/// let json: Answer = true.into();
/// let page = Answer::form([("order", "A-1"), ("count", "3"), ("gift", "on")]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Answer(Given);

#[derive(Clone, Debug, PartialEq)]
enum Given {
    Json(Value),
    Form(Vec<(String, String)>),
}

impl<T: Into<Value>> From<T> for Answer {
    fn from(value: T) -> Self {
        Self(Given::Json(value.into()))
    }
}

impl Answer {
    /// The fields of an HTML form, in the order they were sent; a name may come more than once.
    ///
    /// A question that takes one value reads the only field, or the one named `answer`. For an approval, a confirm and
    /// an address `true` and `on` mean yes and `false` means no. A form's fields are read by their type: `"3"` as an
    /// integer, `"on"` as true, one value as a list where a list is taken, `""` of an optional field as none; of a name
    /// that came more than once the last counts, so that a hidden `false` before a checkbox says what its absence means.
    pub fn form<N: Into<String>, V: Into<String>>(fields: impl IntoIterator<Item = (N, V)>) -> Self {
        Self(Given::Form(fields.into_iter().map(|(name, value)| (name.into(), value.into())).collect()))
    }

    /// The JSON value that the question is checked with.
    pub(crate) fn value_for(&self, request: &InputRequest) -> Result<Value> {
        let sent = match &self.0 {
            Given::Json(value) => return Ok(value.clone()),
            Given::Form(sent) => sent,
        };
        match request.kind {
            Kind::Form => form_value(&request.fields, sent),
            Kind::Approval | Kind::Confirm | Kind::Url => match single(sent)? {
                "true" | "on" => Ok(Value::Bool(true)),
                "false" => Ok(Value::Bool(false)),
                _ => Err(Error::invalid("true, on or false is expected")),
            },
            Kind::Text | Kind::Secret | Kind::Choice => Ok(Value::from(single(sent)?)),
        }
    }

    /// Whether it is a bare `false`, which declines anything.
    pub(crate) fn declines(&self) -> bool {
        self.0 == Given::Json(Value::Bool(false))
    }

    /// The answer as it came, for comparing with what was decided.
    pub(crate) fn as_sent(&self) -> Value {
        match &self.0 {
            Given::Json(value) => value.clone(),
            Given::Form(sent) => {
                Value::Object(sent.iter().map(|(name, value)| (name.clone(), Value::from(value.as_str()))).collect())
            }
        }
    }
}

/// The one value of a form for a question that takes one.
fn single(sent: &[(String, String)]) -> Result<&str> {
    match sent {
        [(_, value)] => Ok(value),
        sent => sent
            .iter()
            .rev()
            .find_map(|(name, value)| (name == "answer").then_some(value.as_str()))
            .ok_or_else(|| Error::invalid("one field is expected, or one named answer")),
    }
}

fn form_value(fields: &[Field], sent: &[(String, String)]) -> Result<Value> {
    let mut out = Map::new();
    for field in fields {
        let mut values: Vec<&str> =
            sent.iter().filter(|(name, _)| *name == field.name).map(|(_, value)| value.as_str()).collect();
        // A form of one field may be sent under any name.
        if let ([_], [(_, value)], true) = (fields, sent, values.is_empty()) {
            values.push(value);
        }
        if field.kind == FieldType::Choices {
            values.retain(|value| !value.is_empty());
            if !values.is_empty() {
                out.insert(field.name.clone(), values.into_iter().map(Value::from).collect());
            }
            continue;
        }
        match values.last() {
            None | Some(&"") => {}
            Some(value) => drop(out.insert(field.name.clone(), scalar(field, value)?)),
        }
    }
    // An empty object takes the defaults and names what is missing; nothing that was meant is lost by it.
    Ok(Value::Object(out))
}

fn scalar(field: &Field, text: &str) -> Result<Value> {
    let wrong = |what: &str| Err(Error::invalid(format!("{}: {what} is expected", field.name)));
    match field.kind {
        FieldType::Integer => match number(text) {
            Some(number) if is_whole(&number) => Ok(number),
            _ => wrong("a whole number"),
        },
        FieldType::Number => number(text).map_or_else(|| wrong("a number"), Ok),
        FieldType::Boolean => match text {
            "true" | "on" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            _ => wrong("true or false"),
        },
        FieldType::String | FieldType::Choice | FieldType::Choices => Ok(Value::from(text)),
    }
}

/// A number as JSON writes it; white space around it does not count.
fn number(text: &str) -> Option<Value> {
    serde_json::from_str::<serde_json::Number>(text.trim()).ok().map(Value::Number)
}

fn is_whole(value: &Value) -> bool {
    value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ask::{choice, confirm, form, text};

    fn read(request: &InputRequest, fields: &[(&str, &str)]) -> Result<Value, String> {
        let answer = Answer::form(fields.iter().copied());
        let value = answer.value_for(request).map_err(|e| e.to_string())?;
        match request.check(&value).map_err(|e| e.to_string())? {
            crate::request::Checked::Accept(value) => Ok(value),
            crate::request::Checked::Decline => Ok(json!("declined")),
        }
    }

    // Q7
    #[test]
    fn a_question_of_one_value_reads_the_only_field_or_the_one_named_answer() {
        let yes = confirm("Go?").request;
        for (fields, expected) in [
            (vec![("answer", "true")], Ok(json!(true))),
            (vec![("x", "on")], Ok(json!(true))),
            (vec![("x", "1"), ("answer", "false")], Ok(json!("declined"))),
            (vec![("x", "yes")], Err("true, on or false is expected".to_owned())),
            (vec![], Err("one field is expected, or one named answer".to_owned())),
            (vec![("x", "true"), ("y", "true")], Err("one field is expected, or one named answer".to_owned())),
        ] {
            assert_eq!(read(&yes, &fields), expected, "{fields:?}");
        }
        assert_eq!(read(&text("Why?").request, &[("answer", "")]), Ok(json!("")));
        assert_eq!(read(&text("Why?").request, &[("answer", "false")]), Ok(json!("false")));
        assert_eq!(read(&choice::<i64>("Plan?", [(1, "Basic")]).request, &[("answer", "1")]), Ok(json!(1)));
        assert_eq!(read(&choice::<i64>("Plan?", [1]).request, &[("answer", "Basic")]), Err("not one of 1".to_owned()));
    }

    // Q7
    #[test]
    fn a_form_is_read_by_the_types_of_its_fields() {
        let all = form::<Value>(
            "Order",
            [
                Field::new("name", FieldType::String).required(),
                Field::new("count", FieldType::Integer).default_value(1),
                Field::new("price", FieldType::Number),
                Field::new("gift", FieldType::Boolean).default_value(false),
                Field::new("size", FieldType::Choice).options(["S", "M"]),
                Field::new("extras", FieldType::Choices).options(["ribbon", "card"]),
            ],
        )
        .request;
        type Case = (Vec<(&'static str, &'static str)>, Result<Value, &'static str>);
        let cases: Vec<Case> = vec![
            (vec![("name", "Ann")], Ok(json!({ "name": "Ann", "count": 1, "gift": false }))),
            (
                vec![("name", "Ann"), ("count", "3"), ("unknown", "x")],
                Ok(json!({ "name": "Ann", "count": 3, "gift": false })),
            ),
            (vec![("name", "Ann"), ("count", " 3.0 ")], Ok(json!({ "name": "Ann", "count": 3, "gift": false }))),
            (
                vec![("name", "Ann"), ("price", "1e2")],
                Ok(json!({ "name": "Ann", "count": 1, "price": 100.0, "gift": false })),
            ),
            (
                vec![("name", "Ann"), ("gift", "false"), ("gift", "on")],
                Ok(json!({ "name": "Ann", "count": 1, "gift": true })),
            ),
            (
                vec![("name", "Ann"), ("size", ""), ("extras", "card")],
                Ok(json!({ "name": "Ann", "count": 1, "gift": false, "extras": ["card"] })),
            ),
            (
                vec![("name", "Ann"), ("size", "M"), ("extras", "card"), ("extras", "ribbon")],
                Ok(json!({ "name": "Ann", "count": 1, "gift": false, "size": "M", "extras": ["card", "ribbon"] })),
            ),
            (vec![("name", "")], Err("name is missing")),
            (vec![], Err("name is missing")),
            (vec![("name", "Ann"), ("count", "3.5")], Err("count: a whole number is expected")),
            (vec![("name", "Ann"), ("count", "three")], Err("count: a whole number is expected")),
            (vec![("name", "Ann"), ("price", "NaN")], Err("price: a number is expected")),
            (vec![("name", "Ann"), ("gift", "maybe")], Err("gift: true or false is expected")),
            (vec![("name", "Ann"), ("size", "XL")], Err("size: not one of")),
            (vec![("name", "Ann"), ("extras", "card"), ("extras", "cash")], Err("extras: not one of")),
        ];
        for (fields, expected) in cases {
            match (read(&all, &fields), expected) {
                (Ok(value), Ok(expected)) => assert_eq!(value, expected, "{fields:?}"),
                (Err(error), Err(expected)) => assert!(error.contains(expected), "{fields:?}: {error}"),
                (got, expected) => panic!("{fields:?}: {got:?}, not {expected:?}"),
            }
        }
        let one = form::<Value>("Count", [Field::new("count", FieldType::Integer).required()]).request;
        assert_eq!(read(&one, &[("answer", "7")]), Ok(json!({ "count": 7 })));
    }
}
