//! Shapes and text as SVG elements.

use std::fmt::Write as _;

/// Text that matters.
pub(super) const INK: &str = "#1f2933";
/// Text beside it.
pub(super) const MUTED: &str = "#52606d";
/// Borders of boxes.
pub(super) const BORDER: &str = "#7b8794";
/// Behind pods and groups.
pub(super) const SHADE: &str = "#f2f5f8";

// Okabe and Ito's colours, which people with any kind of sight tell apart.
pub(super) const BLUE: &str = "#0072b2";
pub(super) const ORANGE: &str = "#d55e00";
pub(super) const GREEN: &str = "#009e73";
pub(super) const GREY: &str = "#8a97a3";

/// A place in the picture.
pub(super) type Point = (f64, f64);

/// An SVG document under construction.
pub(super) struct Canvas {
    body: String,
    width: f64,
    height: f64,
}

impl Canvas {
    pub(super) fn new(width: f64, height: f64) -> Self {
        Self { body: String::new(), width, height }
    }

    pub(super) fn line(&mut self, from: Point, to: Point, colour: &str, width: f64, opacity: f64) {
        self.element(&format!(
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{colour}" stroke-width="{width:.1}" stroke-opacity="{opacity:.2}"/>"#,
            from.0, from.1, to.0, to.1,
        ));
    }

    /// A curve that bends towards `by`.
    pub(super) fn curve(&mut self, ends: [Point; 2], by: Point, colour: &str, width: f64, opacity: f64) {
        let [from, to] = ends;
        self.element(&format!(
            r#"<path d="M {:.1} {:.1} Q {:.1} {:.1} {:.1} {:.1}" fill="none" stroke="{colour}" stroke-width="{width:.1}" stroke-opacity="{opacity:.2}"/>"#,
            from.0, from.1, by.0, by.1, to.0, to.1,
        ));
    }

    /// A box around its centre, with a text that appears when one points at it.
    pub(super) fn rect(&mut self, centre: Point, size: Point, fill: &str, border: &str, title: &str) {
        let (x, y) = (centre.0 - size.0 / 2.0, centre.1 - size.1 / 2.0);
        let shape = format!(
            r#"<rect x="{x:.1}" y="{y:.1}" width="{:.1}" height="{:.1}" rx="5" fill="{fill}" stroke="{border}""#,
            size.0, size.1,
        );
        self.titled(&shape, "rect", title);
    }

    pub(super) fn circle(&mut self, centre: Point, radius: f64, fill: &str, border: &str, title: &str) {
        let shape = format!(
            r#"<circle cx="{:.1}" cy="{:.1}" r="{radius:.1}" fill="{fill}" stroke="{border}""#,
            centre.0, centre.1,
        );
        self.titled(&shape, "circle", title);
    }

    /// `anchor` is `start`, `middle` or `end`.
    pub(super) fn text(&mut self, at: Point, size: f64, anchor: &str, colour: &str, text: &str) {
        let text = escape(text);
        self.element(&format!(
            r#"<text x="{:.1}" y="{:.1}" font-size="{size:.0}" text-anchor="{anchor}" fill="{colour}">{text}</text>"#,
            at.0, at.1,
        ));
    }

    /// Text with a light edge, to be read on top of lines.
    pub(super) fn text_over(&mut self, at: Point, size: f64, colour: &str, text: &str) {
        let text = escape(text);
        self.element(&format!(
            r##"<text x="{:.1}" y="{:.1}" font-size="{size:.0}" text-anchor="middle" fill="{colour}" stroke="#ffffff" stroke-width="3" paint-order="stroke">{text}</text>"##,
            at.0, at.1,
        ));
    }

    /// The document; `label` says what it shows to those who cannot see it.
    pub(super) fn finish(self, label: &str) -> String {
        let Self { body, width, height } = self;
        let label = escape(label);
        format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" font-family="system-ui, 'DejaVu Sans', sans-serif">
<title>{label}</title>
<rect width="100%" height="100%" fill="#ffffff"/>
{body}</svg>
"##
        )
    }

    fn titled(&mut self, shape: &str, name: &str, title: &str) {
        if title.is_empty() {
            self.element(&format!("{shape}/>"));
        } else {
            self.element(&format!("{shape}><title>{}</title></{name}>", escape(title)));
        }
    }

    fn element(&mut self, text: &str) {
        let _ = writeln!(self.body, "{text}");
    }
}

/// Text as XML wants it. Control characters, which XML cannot hold at all, become blanks.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// About how wide a text is.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.6
}
