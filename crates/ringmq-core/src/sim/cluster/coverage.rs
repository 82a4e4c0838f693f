//! Transitions of a replica that the runs of a thread make, from the debug line that each of them writes.
//! `tracing::subscriber::with_default(coverage.clone(), || run(...))`.

use crate::replica::states::{State, TRANSITIONS, Trigger};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// State and trigger by their names.
pub type Transition = (String, String);

/// Seen transitions; clones share them.
#[derive(Clone, Default, Debug)]
pub struct Coverage(Arc<Mutex<BTreeSet<Transition>>>);

impl Coverage {
    pub fn add(&self, seen: Transition) {
        self.0.lock().expect("nobody panics with it").insert(seen);
    }

    /// Takes the transitions that were made since the last call.
    pub fn take(&self) -> BTreeSet<Transition> {
        std::mem::take(&mut self.0.lock().expect("nobody panics with it"))
    }

    /// Transitions of the table, in its order, that were not made.
    pub fn missed(&self) -> Vec<String> {
        let seen = self.0.lock().expect("nobody panics with it");
        let name = |(from, trigger, _): &(State, Trigger, State)| (format!("{from:?}"), format!("{trigger:?}"));
        TRANSITIONS
            .iter()
            .map(name)
            .filter(|name| !seen.contains(name))
            .map(|(from, trigger)| format!("{from} {trigger}"))
            .collect()
    }

    /// Summary for a person.
    pub fn text(&self) -> String {
        let (all, missed) = (TRANSITIONS.len(), self.missed());
        format!("{} of {all} transitions of a replica; not: {}", all - missed.len(), missed.join(", "))
    }
}

#[derive(Default)]
struct Words {
    from: String,
    trigger: String,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "from" => self.from = format!("{value:?}"),
            "trigger" => self.trigger = format!("{value:?}"),
            _ => {}
        }
    }
}

impl Subscriber for Coverage {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        of.target() == concat!(env!("CARGO_CRATE_NAME"), "::replica::base")
    }

    fn event(&self, event: &Event<'_>) {
        let mut words = Words::default();
        event.record(&mut words);
        self.add((words.from, words.trigger));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}
