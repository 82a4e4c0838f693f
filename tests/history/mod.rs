//! A history checker over real processes: it records the answers and deliveries of clients while nodes, disks, networks and etcd fail,
//! and checks the promises.

pub mod check;
pub mod clients;
pub mod faults;
pub mod record;
pub mod world;

use check::History;
use record::Fact;

/// Publishes by what their clients were told, for people.
pub fn outcomes(history: &History) -> String {
    let count = |is_one: fn(&Fact) -> bool| history.events.iter().filter(|event| is_one(&event.fact)).count();
    format!(
        "{} acknowledged, {} refused, {} unknown, {} deliveries",
        count(|f| matches!(f, Fact::Acknowledged(_))),
        count(|f| matches!(f, Fact::Refused(_))),
        count(|f| matches!(f, Fact::Unknown(_))),
        count(|f| matches!(f, Fact::Delivered { .. }))
    )
}
