//! `ringmq top`: topics and channels of one or more nodes on a terminal, looked at anew all the time.
//!
//! [`View`] has the shown state and the effects of keys; drawing is a function of it. The loop asks the nodes and the keyboard.

use crate::address::{HTTP, LOOKUPD, Nodes, arg, positive_duration, tls_args};
use crate::http::HttpError;
use crate::stats::{Counts, StatsSample, rates};
use crate::text::{bytes, grouped, short};
use clap::{Arg, ArgMatches, Command};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState};
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::mpsc;

pub fn command() -> Command {
    Command::new("top")
        .about("Watch topics and channels live on a terminal")
        .long_about(
            "Watch topics and channels live on a terminal: depth, messages in flight, rates, clients, and how long publishes take. \
             `ringmq stat` prints the same as plain lines.",
        )
        .arg(Arg::new("topic").long("topic").value_name("name").help("Only this topic"))
        .arg(arg(HTTP, "HTTP address of a node; the figures of several add up [default: 127.0.0.1:4151]"))
        .arg(arg(LOOKUPD, "HTTP address of an nsqlookupd, which knows the nodes; may be repeated"))
        .args(tls_args())
        .arg(
            Arg::new("interval")
                .long("interval")
                .value_name("duration")
                .default_value("1s")
                .value_parser(positive_duration)
                .help("Time between two refreshes"),
        )
        .after_help(
            "Keys: q ends, arrows and page keys move, s changes the order (name, depth, rate), c hides and shows channels, p pauses.",
        )
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Name,
    Depth,
    Rate,
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Order::Name => "name",
            Order::Depth => "depth",
            Order::Rate => "rate",
        }
    }
}

/// A line of the table.
#[derive(Clone, PartialEq, Debug)]
struct TableRow {
    topic: String,
    /// `None`: the topic itself.
    channel: Option<String>,
    counts: Counts,
    came: f64,
    went: f64,
}

struct View {
    now: StatsSample,
    before: StatsSample,
    order: Order,
    with_channels: bool,
    is_held: bool,
    error: Option<String>,
    table: TableState,
}

impl View {
    fn new() -> View {
        View {
            now: StatsSample::empty(),
            before: StatsSample::empty(),
            order: Order::Name,
            with_channels: true,
            is_held: false,
            error: None,
            table: TableState::default().with_selected(0),
        }
    }

    fn looked(&mut self, look: Result<StatsSample, HttpError>) {
        match look {
            Ok(_) if self.is_held => {}
            Ok(look) => {
                self.before = std::mem::replace(&mut self.now, look);
                self.error = None;
            }
            Err(error) => self.error = Some(error.to_string()),
        }
    }

    /// False: the end.
    fn key(&mut self, code: KeyCode, modifiers: KeyModifiers) -> bool {
        let last = self.rows().len().saturating_sub(1);
        let at = self.table.selected().unwrap_or(0);
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('c') => self.with_channels = !self.with_channels,
            KeyCode::Char('p') => self.is_held = !self.is_held,
            KeyCode::Char('s') => {
                self.order = match self.order {
                    Order::Name => Order::Depth,
                    Order::Depth => Order::Rate,
                    Order::Rate => Order::Name,
                }
            }
            KeyCode::Down | KeyCode::Char('j') => self.table.select(Some((at + 1).min(last))),
            KeyCode::Up | KeyCode::Char('k') => self.table.select(Some(at.saturating_sub(1))),
            KeyCode::PageDown => self.table.select(Some((at + 10).min(last))),
            KeyCode::PageUp => self.table.select(Some(at.saturating_sub(10))),
            KeyCode::Home => self.table.select(Some(0)),
            KeyCode::End => self.table.select(Some(last)),
            _ => {}
        }
        true
    }

    /// Topics in their order, each with its channels.
    fn rows(&self) -> Vec<TableRow> {
        let known = !self.before.topics.is_empty();
        let seconds = if known { self.now.at.duration_since(self.before.at).as_secs_f64() } else { 0.0 };
        let mut groups: Vec<Vec<TableRow>> = vec![];
        for (name, topic) in &self.now.topics {
            let was = self.before.topics.get(name);
            let shown = |channel: Option<&String>, counts: &Counts, before: Option<&Counts>| {
                let (came, went) = rates(counts, before, seconds);
                TableRow { topic: name.clone(), channel: channel.cloned(), counts: counts.clone(), came, went }
            };
            let mut group = vec![shown(None, &topic.counts, was.map(|was| &was.counts))];
            for (channel, counts) in &topic.channels {
                group.push(shown(Some(channel), counts, was.and_then(|was| was.channels.get(channel))));
            }
            groups.push(group);
        }
        match self.order {
            Order::Name => {}
            Order::Depth => groups.sort_by_key(|group| std::cmp::Reverse(group.iter().map(|s| s.counts.depth).max())),
            Order::Rate => groups.sort_by(|a, b| b[0].came.total_cmp(&a[0].came)),
        }
        let mut rows: Vec<TableRow> = groups.into_iter().flatten().collect();
        rows.retain(|shown| self.with_channels || shown.channel.is_none());
        rows
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let troubles = self.error.iter().chain(&self.now.troubles).count().min(4) as u16;
        let areas =
            Layout::vertical([Constraint::Length(2), Constraint::Min(3), Constraint::Length(troubles), Constraint::Length(1)])
                .split(frame.area());
        frame.render_widget(Paragraph::new(self.head()), areas[0]);
        let rows = self.rows();
        // The words of nsq_stat: all columns fit a terminal of 80.
        let head = ["TOPIC / CHANNEL", "DEPTH", "INFLT", "DEF", "IN/S", "OUT/S", "REQ", "T-O", "CLIENTS", ""];
        let right = |text: String| Cell::from(Line::from(text).right_aligned());
        let head = head.iter().enumerate().map(|(i, text)| if i == 0 { Cell::from(*text) } else { right(text.to_string()) });
        let widths = [Constraint::Min(16)].into_iter().chain([6, 6, 6, 6, 6, 6, 6, 7, 6].map(Constraint::Length));
        let table = Table::new(rows.iter().map(row), widths)
            .header(Row::new(head).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_stateful_widget(table, areas[1], &mut self.table);
        let lines: Vec<Line<'_>> = self.error.iter().chain(&self.now.troubles).take(4).map(|t| Line::from(t.clone())).collect();
        frame.render_widget(Paragraph::new(lines).style(Style::new().fg(Color::Red)), areas[2]);
        let keys = format!(
            "q end  arrows move  s order: {}  c channels  p {}",
            self.order.name(),
            if self.is_held { "go on" } else { "hold" }
        );
        frame.render_widget(Paragraph::new(keys).style(Style::new().fg(Color::DarkGray)), areas[3]);
    }

    fn head(&self) -> Vec<Line<'static>> {
        let rows = self.rows();
        let topics = rows.iter().filter(|shown| shown.channel.is_none());
        let came: f64 = topics.clone().map(|shown| shown.came).sum();
        let plural = |n: usize, what: &str| if n == 1 { format!("1 {what}") } else { format!("{} {what}s", grouped(n as u64)) };
        let channels = self.now.topics.values().map(|topic| topic.channels.len()).sum();
        let bold = |text: String| Span::styled(text, Style::new().add_modifier(Modifier::BOLD));
        let mut first = vec![bold("ringmq top".into()), Span::raw(format!("  {}", plural(self.now.nodes, "node")))];
        first.push(Span::raw(format!("  {}  {}", plural(self.now.topics.len(), "topic"), plural(channels, "channel"))));
        let memory = if self.now.memory_bytes > 0 { format!("  memory {}", bytes(self.now.memory_bytes)) } else { String::new() };
        first.push(Span::raw(format!("  {} {memory}", plural(self.now.connections as usize, "connection"))));
        if self.is_held {
            first.push(Span::styled("  HELD", Style::new().fg(Color::Yellow)));
        }
        let quantile =
            |share| self.now.publish_quantile(&self.before, share).map_or_else(|| "-".to_owned(), |d| format!("{d:?}"));
        let second = format!("{} messages/s in  publish p50 {}  p99 {} (at most)", short(came), quantile(0.5), quantile(0.99));
        vec![Line::from(first), Line::from(second)]
    }
}

fn row(shown: &TableRow) -> Row<'static> {
    let counts = &shown.counts;
    let is_topic = shown.channel.is_none();
    let name = shown.channel.as_ref().map_or_else(|| shown.topic.clone(), |channel| format!("  {channel}"));
    let style = if is_topic { Style::new().fg(Color::Cyan) } else { Style::new() };
    let number = |n: u64| short(n as f64);
    let of_channel = |text: String| if is_topic { String::new() } else { text };
    let cells = [
        number(counts.depth),
        of_channel(number(counts.in_flight)),
        of_channel(number(counts.deferred)),
        short(shown.came),
        of_channel(short(shown.went)),
        of_channel(number(counts.requeued)),
        of_channel(number(counts.timed_out)),
        of_channel(number(counts.clients)),
        if counts.is_paused { "paused".into() } else { String::new() },
    ];
    let cells = cells.into_iter().map(|text| Cell::from(Line::from(text).right_aligned()));
    Row::new(std::iter::once(Cell::from(name).style(style)).chain(cells))
}

pub fn execute(matches: &ArgMatches) -> ExitCode {
    let nodes = match Nodes::of(matches, HTTP, "127.0.0.1:4151") {
        Ok(nodes) => nodes,
        Err(error) => return crate::misused(&error),
    };
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return crate::misused(&"top needs a terminal: `ringmq stat` prints plain lines");
    }
    let interval = *matches.get_one::<Duration>("interval").expect("it has a default");
    let topic = matches.get_one::<String>("topic").cloned();
    crate::block_on(async {
        // The first look tells whether a node answers, before the screen is taken.
        let first = match StatsSample::take(&nodes, topic.as_deref(), None, true).await {
            Ok(first) => first,
            Err(error) => return crate::failed(&error),
        };
        let mut terminal = match ratatui::try_init() {
            Ok(terminal) => terminal,
            Err(error) => return crate::failed(&format!("the terminal cannot be used: {error}")),
        };
        let mut view = View::new();
        view.looked(Ok(first));
        let result = watch(&mut terminal, view, nodes, topic, interval).await;
        ratatui::restore();
        result.map_or_else(|error| crate::failed(&format!("the terminal: {error}")), |()| ExitCode::SUCCESS)
    })
}

async fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    mut view: View,
    nodes: Nodes,
    topic: Option<String>,
    interval: Duration,
) -> std::io::Result<()> {
    let mut keys = keyboard();
    let (tx, mut looks) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(interval).await;
            if tx.send(StatsSample::take(&nodes, topic.as_deref(), None, true).await).await.is_err() {
                return;
            }
        }
    });
    loop {
        terminal.draw(|frame| view.draw(frame))?;
        tokio::select! {
            look = looks.recv() => if let Some(look) = look { view.looked(look) },
            event = keys.recv() => match event {
                Some(Event::Key(key)) if key.kind == KeyEventKind::Press => {
                    if !view.key(key.code, key.modifiers) {
                        return Ok(());
                    }
                }
                Some(_) => {}
                None => return Ok(()),
            },
            () = crate::until_signal() => return Ok(()),
        }
    }
}

/// Events of the terminal, read by a thread of its own: reading blocks.
fn keyboard() -> mpsc::Receiver<Event> {
    let (tx, rx) = mpsc::channel(16);
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            if tx.blocking_send(event).is_err() {
                return;
            }
        }
    });
    rx
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Topic;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    /// Name and messages of a topic, and the depths of its channels.
    type Sample<'a> = (&'a str, u64, &'a [(&'a str, u64)]);

    fn look(topics: &[Sample<'_>]) -> StatsSample {
        let mut look = StatsSample { nodes: 1, ..StatsSample::empty() };
        for (name, messages, channels) in topics {
            let counts = |depth, messages| Counts { depth, messages, ..Counts::default() };
            let channels = channels.iter().map(|(name, depth)| (name.to_string(), counts(*depth, *messages))).collect();
            look.topics.insert(name.to_string(), Topic { counts: counts(0, *messages), bytes: 0, channels });
        }
        look
    }

    fn screen(view: &mut View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(110, 12)).expect("a terminal");
        terminal.draw(|frame| view.draw(frame)).expect("drawn");
        let buffer = terminal.backend().buffer().clone();
        buffer.content().chunks(110).map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>() + "\n").collect()
    }

    fn view() -> View {
        let mut view = View::new();
        view.looked(Ok(look(&[("a", 10, &[("x", 5)]), ("b", 20, &[("y", 9_000)])])));
        view
    }

    #[test]
    fn topics_and_channels_are_shown() {
        let text = screen(&mut view());
        for wanted in ["1 node  2 topics  2 channels", "TOPIC / CHANNEL", "  x", "9000", "s order: name"] {
            assert!(text.contains(wanted), "no {wanted} in\n{text}");
        }
    }

    #[test]
    fn keys_change_what_is_shown() {
        let mut view = view();
        let names = |view: &View| view.rows().into_iter().map(|shown| shown.channel.unwrap_or(shown.topic)).collect::<Vec<_>>();
        assert_eq!(names(&view), ["a", "x", "b", "y"]);
        assert!(view.key(KeyCode::Char('s'), KeyModifiers::NONE));
        assert_eq!(names(&view), ["b", "y", "a", "x"]);
        assert!(view.key(KeyCode::Char('c'), KeyModifiers::NONE));
        assert_eq!(names(&view), ["b", "a"]);
        for _ in 0..5 {
            view.key(KeyCode::Down, KeyModifiers::NONE);
        }
        assert_eq!(view.table.selected(), Some(1));
        assert!(!view.key(KeyCode::Char('q'), KeyModifiers::NONE) && !view.key(KeyCode::Char('c'), KeyModifiers::CONTROL));
    }

    #[test]
    fn a_node_that_is_gone_is_named_and_the_last_look_stays() {
        let mut view = view();
        let gone = HttpError::Refused {
            address: "h:1".into(),
            path: "/stats".into(),
            status: 503,
            message: "gone".into(),
            https_port: None,
        };
        view.looked(Err(gone));
        let text = screen(&mut view);
        assert!(text.contains("gone") && text.contains("9000"), "{text}");
    }
}
