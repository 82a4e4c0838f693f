//! Line plots as inline SVG: axes, grid, one line a run. Colours are classes that the page's style defines.

use std::fmt::Write as _;

/// Runs beyond these share colours, and are told apart by dashes.
pub const COLOURS: usize = 7;

const WIDTH: f64 = 900.0;
const HEIGHT: f64 = 380.0;
const LEFT: f64 = 82.0;
const RIGHT: f64 = 40.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 52.0;

/// Number of points; more than the pixels would show nothing.
const POINTS_MAX: usize = 1000;

/// Mapping from values to a share of the width or height, 0 to 1.
pub struct Axis {
    pub label: &'static str,
    /// Values on the axis, each with its label.
    pub ticks: Vec<(f64, String)>,
    pub min: f64,
    pub max: f64,
}

impl Axis {
    fn share(&self, value: f64) -> f64 {
        let span = (self.max - self.min).max(f64::MIN_POSITIVE);
        ((value - self.min) / span).clamp(0.0, 1.0)
    }

    /// Axis from zero with a round step.
    pub fn linear(label: &'static str, max: f64, show: impl Fn(f64) -> String) -> Axis {
        let rough = (max / 5.0).max(1e-9);
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].iter().map(|n| n * power).find(|step| *step >= rough).unwrap_or(10.0 * power);
        let steps = (max / step).ceil().max(1.0) as usize;
        let ticks = (0..=steps).map(|i| (i as f64 * step, show(i as f64 * step))).collect();
        Axis { label, ticks, min: 0.0, max: steps as f64 * step }
    }

    /// Axis of whole decades around `low` to `high`, both above zero; values are logarithms.
    pub fn decades(label: &'static str, low: f64, high: f64, show: impl Fn(f64) -> String) -> Axis {
        let (min, max) = (low.log10().floor(), high.log10().ceil());
        let max = if max > min { max } else { min + 1.0 };
        let ticks = (min as i32..=max as i32).map(|power| (power as f64, show(10f64.powi(power)))).collect();
        Axis { label, ticks, min, max }
    }

    /// Nines: 0 %, 90 %, 99 % and so on stand one step apart.
    pub fn nines(label: &'static str, count: usize) -> Axis {
        let name = |nines: usize| match nines {
            0 => "0 %".to_string(),
            1 => "90 %".into(),
            2 => "99 %".into(),
            n => format!("99.{} %", "9".repeat(n - 2)),
        };
        Axis { label, ticks: (0..=count).map(|n| (n as f64, name(n))).collect(), min: 0.0, max: count as f64 }
    }
}

/// A percentile (0 to 100) on [`Axis::nines`]; none for 100, which is nowhere.
pub fn nines(percentile: f64) -> Option<f64> {
    (percentile < 100.0).then(|| -(1.0 - percentile / 100.0).log10())
}

pub struct Line {
    /// Run of the line, which gives the colour.
    pub run: usize,
    pub dashed: bool,
    /// Pieces of the line, each drawn by itself: there is no data between two pieces.
    pub pieces: Vec<Vec<(f64, f64)>>,
}

/// Pieces of neighbours that have a value.
pub fn pieces(points: impl Iterator<Item = Option<(f64, f64)>>) -> Vec<Vec<(f64, f64)>> {
    let mut pieces = vec![Vec::new()];
    for point in points {
        match (point, pieces.last_mut()) {
            (Some(point), Some(piece)) => piece.push(point),
            (None, Some(piece)) if !piece.is_empty() => pieces.push(Vec::new()),
            _ => {}
        }
    }
    pieces.retain(|piece| !piece.is_empty());
    pieces
}

/// The plot. `title`: for readers that cannot see it.
pub fn svg(title: &str, x: &Axis, y: &Axis, lines: &[Line]) -> String {
    let across = |value: f64| LEFT + x.share(value) * (WIDTH - LEFT - RIGHT);
    let up = |value: f64| HEIGHT - BOTTOM - y.share(value) * (HEIGHT - TOP - BOTTOM);
    let mut out = String::new();
    // A String takes all that is written to it.
    let _ = write!(out, r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">"#);
    for (value, text) in &x.ticks {
        let (at, bottom) = (across(*value), HEIGHT - BOTTOM);
        let _ = write!(out, r#"<line class="grid" x1="{at:.1}" y1="{TOP}" x2="{at:.1}" y2="{bottom}"/>"#);
        let _ = write!(out, r#"<text x="{at:.1}" y="{:.1}" text-anchor="middle">{text}</text>"#, bottom + 18.0);
    }
    for (value, text) in &y.ticks {
        let (at, right) = (up(*value), WIDTH - RIGHT);
        let _ = write!(out, r#"<line class="grid" x1="{LEFT}" y1="{at:.1}" x2="{right}" y2="{at:.1}"/>"#);
        let _ = write!(out, r#"<text x="{:.1}" y="{:.1}" text-anchor="end">{text}</text>"#, LEFT - 8.0, at + 4.0);
    }
    let (middle, low) = ((LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 10.0);
    let _ = write!(out, r#"<text class="axis" x="{middle}" y="{low}" text-anchor="middle">{}</text>"#, x.label);
    let height = (TOP + HEIGHT - BOTTOM) / 2.0;
    let turned = format!(r#"x="16" y="{height}" text-anchor="middle" transform="rotate(-90 16 {height})""#);
    let _ = write!(out, r#"<text class="axis" {turned}>{}</text>"#, y.label);
    for line in lines {
        let step = line.pieces.iter().map(Vec::len).sum::<usize>().div_ceil(POINTS_MAX).max(1);
        let (colour, dashes) = (line.run % COLOURS, if line.dashed || line.run >= COLOURS { " dashed" } else { "" });
        for piece in &line.pieces {
            let mut points: Vec<String> =
                piece.iter().step_by(step).map(|(px, py)| format!("{:.1},{:.1}", across(*px), up(*py))).collect();
            let mut class = dashes;
            if let [only] = &points[..] {
                // a line of no length, whose round ends are a dot
                (points, class) = (vec![only.clone(); 2], " dot");
            }
            let _ = write!(out, r#"<polyline class="line c{colour}{class}" points="{}"/>"#, points.join(" "));
        }
    }
    out + "</svg>"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_where_there_is_nothing() {
        let (one, two, four) = ((1.0, 1.0), (2.0, 1.0), (4.0, 1.0));
        let pieces = pieces([None, Some(one), Some(two), None, None, Some(four), None].into_iter());
        assert_eq!(pieces, [vec![one, two], vec![four]]);
        let axis = || Axis::linear("x", 5.0, |v| v.to_string());
        let svg = svg("t", &axis(), &axis(), &[Line { run: 0, dashed: false, pieces }]);
        assert_eq!((svg.matches("<polyline").count(), svg.matches("line c0 dot").count()), (2, 1), "{svg}");
    }

    #[test]
    fn axes_hold_their_values_at_round_places() {
        let axis = Axis::linear("x", 173.0, |v| v.to_string());
        assert_eq!((axis.max, axis.ticks.len(), axis.ticks[1].1.as_str()), (200.0, 5, "50"));
        let axis = Axis::decades("x", 30.0, 2000.0, |v| v.to_string());
        assert_eq!((axis.min, axis.max, axis.ticks[0].1.as_str()), (1.0, 4.0, "10"));
        assert_eq!(Axis::decades("x", 10.0, 10.0, |v| v.to_string()).max, 2.0);
        assert_eq!(Axis::linear("x", 0.0, |v| v.to_string()).ticks.len(), 2);
        assert_eq!(Axis::nines("x", 4).ticks[4].1, "99.99 %");
        assert!((nines(99.9).unwrap() - 3.0).abs() < 1e-9 && nines(100.0).is_none());
    }
}
