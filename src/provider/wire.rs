//! What the wires share: JSON that is read without losing a byte of it, and the ids of calls as they go out.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::{CallResult, Entry, ToolSpec};

/// The fields of a JSON object in their order, each value a slice of the text it came in.
///
/// A derived struct would refuse a repeated key and drop an unknown one; this keeps both.
pub(super) struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Fields<'a> {
    pub(super) fn of(text: &'a str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }

    /// The value of a key, the last one if it is repeated; JSON null is no value.
    pub(super) fn get(&self, key: &str) -> Option<&'a RawValue> {
        let (_, value) = self.0.iter().rev().find(|(name, _)| name == key)?;
        Some(*value).filter(|value| value.get() != "null")
    }

    /// A string, decoded.
    pub(super) fn text(&self, key: &str) -> Option<String> {
        self.get(key).and_then(decoded)
    }

    pub(super) fn object(&self, key: &str) -> Option<Fields<'a>> {
        Fields::of(self.get(key)?.get()).ok()
    }

    pub(super) fn number(&self, key: &str) -> Option<u64> {
        serde_json::from_str(self.get(key)?.get()).ok()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    pub(super) fn names(&self) -> String {
        let names: Vec<_> = self.0.iter().map(|(name, _)| format!("`{name}`")).collect();
        names.join(", ")
    }
}

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;

        impl<'de> Visitor<'de> for Reader {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }
        }

        deserializer.deserialize_map(Reader)
    }
}

/// The elements of an array, or `None` if it is no array.
pub(super) fn elements(raw: &RawValue) -> Option<Vec<&RawValue>> {
    serde_json::from_str(raw.get()).ok()
}

/// The text of a JSON string, or `None` if it is no string.
pub(super) fn decoded(raw: &RawValue) -> Option<String> {
    let text = raw.get();
    if !text.starts_with('"') {
        return None;
    }
    // A model that was cut in the middle of a character leaves half a surrogate pair, which JSON allows and
    // Rust's strings do not. The half is shown as a replacement character; the stored items keep it.
    serde_json::from_str(text).ok().or_else(|| serde_json::from_str(&without_lone_surrogates(text)).ok())
}

fn without_lone_surrogates(text: &str) -> String {
    let unit = |at: usize| {
        let hex = text.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(hex, 16).ok()
    };
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(c) = text.get(at..).and_then(|rest| rest.chars().next()) {
        let next = text.get(at + 1..).and_then(|rest| rest.chars().next());
        let len = match (c, next) {
            ('\\', Some('u')) => match (unit(at), unit(at + 6)) {
                (Some(0xD800..=0xDBFF), Some(0xDC00..=0xDFFF)) => 12,
                (Some(0xD800..=0xDFFF), _) => {
                    out.push_str("\\ufffd");
                    at += 6;
                    continue;
                }
                _ => 2,
            },
            ('\\', Some(next)) => 1 + next.len_utf8(),
            _ => c.len_utf8(),
        };
        out.push_str(text.get(at..at + len).unwrap_or_default());
        at += len;
    }
    out
}

/// Small changes to a JSON text that leave every other byte where it was.
pub(super) struct Splices<'a> {
    text: &'a str,
    changes: Vec<(Range<usize>, String)>,
}

impl<'a> Splices<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, changes: Vec::new() }
    }

    /// Puts something else in the place of a piece, which must be a slice of the text.
    pub(super) fn replace(&mut self, piece: &RawValue, with: String) {
        if let Some(start) = self.offset(piece) {
            self.changes.push((start..start + piece.get().len(), with));
        }
    }

    /// Adds a field at the front of an object that has others.
    pub(super) fn add_field(&mut self, object: &RawValue, name: &str, value: &str) {
        if let Some(start) = self.offset(object) {
            self.changes.push((start + 1..start + 1, format!("{}:{value},", json_string(name))));
        }
    }

    /// Gives a call its id, whether it has one, a null or none.
    pub(super) fn set_id(&mut self, object: &RawValue, fields: &Fields<'_>, id: &str) {
        match fields.iter().find(|(name, _)| *name == "id") {
            Some((_, old)) => self.replace(old, json_string(id)),
            None => self.add_field(object, "id", &json_string(id)),
        }
    }

    pub(super) fn finish(mut self) -> Cow<'a, str> {
        if self.changes.is_empty() {
            return Cow::Borrowed(self.text);
        }
        self.changes.sort_by_key(|(range, _)| range.start);
        let (mut out, mut at) = (String::with_capacity(self.text.len() + 32), 0);
        for (range, with) in &self.changes {
            out.push_str(self.text.get(at..range.start).unwrap_or_default());
            out.push_str(with);
            at = range.end;
        }
        out.push_str(self.text.get(at..).unwrap_or_default());
        Cow::Owned(out)
    }

    fn offset(&self, piece: &RawValue) -> Option<usize> {
        let start = (piece.get().as_ptr() as usize).checked_sub(self.text.as_ptr() as usize)?;
        (start + piece.get().len() <= self.text.len()).then_some(start)
    }
}

/// A string as JSON text.
pub(super) fn json_string(text: &str) -> String {
    Value::from(text).to_string()
}

/// A request as JSON text.
///
/// It is made of strings, numbers and JSON that has been read before, with strings for keys: nothing that
/// serde_json could refuse, so no caller has to deal with an error that cannot be.
pub(super) fn to_json(body: &impl serde::Serialize) -> String {
    serde_json::to_string(body).unwrap_or_default()
}

/// A tool's schema; every service wants an object.
pub(super) fn schema(spec: &ToolSpec) -> Value {
    if spec.schema.is_object() { spec.schema.clone() } else { json!({"type": "object"}) }
}

/// The items of a stored turn, if they go back as they came on this wire.
pub(super) fn own_items<'a>(items: &'a Option<String>, api: &Option<String>, wire: &str) -> Option<&'a str> {
    items.as_deref().filter(|_| api.as_deref() == Some(wire))
}

/// Keeps a request's extra field, unless it is one that the wire writes itself: a key must not stand twice.
pub(super) fn keep_option(options: &mut Map<String, Value>, written: &[&str], name: String, value: Value) {
    if written.contains(&name.as_str()) {
        tracing::warn!(option = %name, "this field of the request is written by askback; the option is left out");
    } else {
        options.insert(name, value);
    }
}

/// The ids of a history's calls as they go out, entry by entry.
///
/// Blank and repeated ones get a made-up id, and so do those that `fits` says the wire cannot take; all others stay.
/// A made-up id comes from the call's place in the history, so the same history gives the same bytes again. It has nine
/// letters and digits: that is the one form every service takes (Mistral's documentation allows no other).
pub(super) fn unique_ids(history: &[Entry], fits: impl Fn(&Entry, &str) -> bool) -> Vec<Vec<String>> {
    let taken: HashSet<&str> = history.iter().flat_map(calls_of).map(|call| call.wire_id.as_str()).collect();
    let (mut used, mut nth) = (HashSet::new(), 0_u32);
    let mut ids = Vec::with_capacity(history.len());
    for entry in history {
        let mut of_entry = Vec::new();
        for call in calls_of(entry) {
            let mut id = call.wire_id.clone();
            if id.trim().is_empty() || used.contains(&id) || !fits(entry, &id) {
                id = format!("call{nth:05}");
                while taken.contains(id.as_str()) || used.contains(&id) {
                    nth += 1;
                    id = format!("call{nth:05}");
                }
            }
            nth += 1;
            used.insert(id.clone());
            of_entry.push(id);
        }
        ids.push(of_entry);
    }
    ids
}

fn calls_of(entry: &Entry) -> &[CallResult] {
    match entry {
        Entry::Turn { calls, .. } => calls,
        Entry::User { .. } => &[],
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_order_repeats_and_the_text_of_values() {
        let fields = Fields::of(r#"{"b": 1.50, "a" : {"x" :1}, "b":null, "a":[ 1 ]}"#).unwrap();
        assert_eq!(fields.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["b", "a", "b", "a"]);
        assert_eq!(fields.get("a").unwrap().get(), "[ 1 ]");
        assert!(fields.get("b").is_none());
    }

    #[test]
    fn a_splice_leaves_every_other_byte() {
        let text = "{\"a\" : [ {\"id\" :\"x\" , \"n\":1.0e2} ],\n \"z\":\"\\u00e9\"}";
        let list = elements(Fields::of(text).unwrap().get("a").unwrap()).unwrap();
        let mut splices = Splices::new(text);
        splices.replace(Fields::of(list[0].get()).unwrap().get("id").unwrap(), "\"new\"".into());
        splices.add_field(list[0], "first", "true");
        assert_eq!(
            splices.finish(),
            "{\"a\" : [ {\"first\":true,\"id\" :\"new\" , \"n\":1.0e2} ],\n \"z\":\"\\u00e9\"}"
        );
    }

    #[test]
    fn half_a_surrogate_pair_is_shown_as_a_replacement_character() {
        let of = |json: &str| decoded(serde_json::from_str(json).unwrap());
        assert_eq!(of(r#""a \ud83d\ude00 \ud83d""#).unwrap(), "a \u{1F600} \u{FFFD}");
        assert_eq!(of(r#""\\ud83d \udc00é""#).unwrap(), "\\ud83d \u{FFFD}é");
        assert_eq!(of("3"), None);
    }
}
