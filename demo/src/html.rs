//! HTML in which everything is escaped that is not HTML already.

use std::borrow::Cow;
use std::fmt;

/// A piece of HTML; made by [`html!`](crate::html!) alone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Html(String);

impl Html {
    /// For the macro: a text whose values were rendered.
    pub(crate) fn of(text: String) -> Self {
        Self(text)
    }

    /// The text to send.
    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

impl FromIterator<Html> for Html {
    fn from_iter<I: IntoIterator<Item = Html>>(pieces: I) -> Self {
        Self(pieces.into_iter().map(|piece| piece.0).collect())
    }
}

/// How a value stands in HTML, in a text or in a quoted attribute.
pub(crate) trait Render {
    /// The value, escaped unless it is HTML.
    fn render(&self) -> Cow<'_, str>;
}

impl Render for Html {
    fn render(&self) -> Cow<'_, str> {
        Cow::Borrowed(&self.0)
    }
}

impl Render for str {
    fn render(&self) -> Cow<'_, str> {
        let mut out = String::with_capacity(self.len());
        for ch in self.chars() {
            match ch {
                '&' => out.push_str("&amp;"),
                '<' => out.push_str("&lt;"),
                '>' => out.push_str("&gt;"),
                '"' => out.push_str("&quot;"),
                '\'' => out.push_str("&#39;"),
                ch => out.push(ch),
            }
        }
        Cow::Owned(out)
    }
}

impl Render for String {
    fn render(&self) -> Cow<'_, str> {
        self.as_str().render()
    }
}

impl<T: Render + ?Sized> Render for &T {
    fn render(&self) -> Cow<'_, str> {
        (**self).render()
    }
}

/// Anything that is shown by its `Display`, escaped.
pub(crate) struct Shown<T>(pub(crate) T);

impl<T: fmt::Display> Render for Shown<T> {
    fn render(&self) -> Cow<'_, str> {
        Cow::Owned(self.0.to_string().render().into_owned())
    }
}

/// Fills a template; every value is named and rendered.
///
/// Variables cannot be captured by the template's braces (`concat!` prevents
/// it), so nothing gets in past [`Render`].
macro_rules! html {
    ($text:expr $(, $name:ident = $value:expr)* $(,)?) => {
        $crate::html::Html::of(format!(concat!($text) $(, $name = $crate::html::Render::render(&$value))*))
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn everything_is_escaped_but_html() {
        let name = "<b title='x'>\"&".to_owned();
        let inner = html!("<i>{name}</i>", name = name);
        let outer = html!("<p>{inner}</p>", inner = inner);
        assert_eq!(outer.into_string(), "<p><i>&lt;b title=&#39;x&#39;&gt;&quot;&amp;</i></p>");
    }
}
