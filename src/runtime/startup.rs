//! Way from a recovered data path to the shards: every partition goes to its core, and the findings of recovery go to the log.

use super::cores::Build;
use super::machine::Machine;
use super::node::{self, Recovering};
use crate::base::{CoreId, Epoch, NodeId, Now, Ticks};
use crate::log::recovery::{RecoverOptions, Recovered, Report, Severity, recover};
use crate::seam::event::{Effects, Event};
use crate::shard::{LENT_MIN, Shard, ShardOptions};
use std::time::Instant;

impl Machine for Shard {
    fn step(&mut self, now: Now, event: Event<'_>, out: &mut Effects) {
        Shard::step(self, now, event, out);
    }

    fn deadline(&self) -> Option<Ticks> {
        Shard::deadline(self)
    }
}

/// Recovers the data path and says how each core's shard is made. Blocking; runs before any executor.
pub fn recover_shards(r: Recovering<'_>) -> Result<node::Recovered<Shard>, String> {
    let options = RecoverOptions {
        cores: r.cores,
        journal_bytes: r.settings.journal_bytes,
        segment_bytes: r.settings.max_bytes_per_file,
        now_unix_ns: r.now_unix_ns,
        producers: (&**r.settings).into(),
        seed: r.seed,
        accept_lost_journal: r.settings.accept_lost_journal,
        is_clustered: r.coordinator.is_some(),
    };
    let begun = Instant::now();
    let recovered = recover(r.storage, &options).map_err(|e| e.to_string())?;
    tell(&recovered.report);
    let node = u128::from_be_bytes(recovered.node_id);
    if recovered.is_first_startup() {
        tracing::warn!(
            data_path = r.settings.data_path,
            node = format_args!("{node:032x}"),
            "the node created a new data path and starts empty. If it should have data, --data-path names the wrong folder"
        );
    }
    tracing::info!(
        node = format_args!("{node:032x}"),
        topics = recovered.topics.len(),
        partitions = recovered.partitions.len(),
        generation = recovered.generation,
        journal_bytes = options.journal_bytes,
        ms = begun.elapsed().as_millis() as u64,
        "data path is ready; new journals stand empty"
    );
    let (generation, me) = (recovered.generation, NodeId(recovered.node_id));
    Ok(node::Recovered { generation, me, builds: shards(r, recovered) })
}

fn tell(report: &Report) {
    for finding in &report.findings {
        match finding.severity {
            Severity::Repaired => tracing::info!("recovery: {finding}"),
            Severity::Mended => tracing::warn!("recovery: {finding}"),
            Severity::Damage => tracing::error!("recovery: {finding}"),
        }
    }
    if report.writes > 0 || report.journals_replayed > 0 {
        tracing::info!(
            journals = report.journals_replayed,
            writes = report.writes,
            records = report.records,
            batches = report.batches_redone,
            bytes = report.bytes_redone,
            "journals replayed"
        );
    }
}

fn shards(r: Recovering<'_>, recovered: Recovered) -> Vec<Build<Shard>> {
    let Recovered { node_id, generation, topics, partitions, journals, .. } = recovered;
    let mut of_core: Vec<Vec<_>> = (0..r.cores).map(|_| vec![]).collect();
    for p in partitions {
        of_core[p.topic.core_of(p.dir.partition, r.cores).0 as usize].push(p);
    }
    let cluster = r.coordinator.map(|coordinator| coordinator.options(generation));
    let connections_max = (r.settings.max_connections as usize).div_ceil(r.cores as usize);
    let each = of_core.into_iter().zip(journals).enumerate();
    let build = |(i, (partitions, journal))| {
        let options = ShardOptions {
            core: CoreId(i as u16),
            cores: r.cores,
            settings: r.settings.clone(),
            epoch: Epoch(generation),
            journal,
            topics: topics.clone(),
            partitions,
            seed: r.seed.wrapping_add(i as u64 + 1),
            connections_max,
            node_id,
            cluster: cluster.clone(),
            lent_min: LENT_MIN,
            tls: r.nsq_tls.clone(),
        };
        Box::new(move |_: CoreId| Shard::new(options)) as Build<Shard>
    };
    each.map(build).collect()
}
