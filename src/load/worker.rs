//! One thread of the generator: a runtime of its own with its share of the connections. A broken connection is opened
//! again until the run ends.

use super::consumer::Consumer;
use super::link::Connection;
use super::producer::Producer;
use super::record::Recorder;
use super::shared::{Phase, RunContext};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

const RECONNECT_AFTER: Duration = Duration::from_millis(100);

pub enum Report {
    /// All connections are open; the version that the server reported.
    Connected(Option<String>),
    Failed(String),
    /// All producers have ended.
    Published,
    /// All consumers have ended by themselves.
    Consumed,
}

pub struct Worker {
    pub shared: Arc<RunContext>,
    pub recorder: Arc<Recorder>,
    pub producers: Vec<u32>,
    pub consumers: Vec<u32>,
    pub phase: watch::Receiver<Phase>,
    pub reports: mpsc::Sender<Report>,
}

impl Worker {
    pub fn run(self) {
        // The other side is gone only when the run has failed already.
        let failed = |error: String| drop(self.reports.send(Report::Failed(error)));
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => {
                if let Err(error) = runtime.block_on(self.load()) {
                    failed(error);
                }
            }
            Err(error) => failed(format!("a thread's runtime: {error}")),
        }
    }

    async fn load(&self) -> Result<(), String> {
        let mut phase = self.phase.clone();
        let mut consumers = Vec::new();
        for number in &self.consumers {
            let consumer = Consumer::new(*number, &self.shared);
            consumers.push((subscribed(&consumer, &self.shared).await?, consumer));
        }
        let mut producers = Vec::new();
        for number in &self.producers {
            let producer = Producer::new(*number, &self.shared).map_err(|e| format!("a timer: {e}"))?;
            producers.push((connected(&producer, &self.shared).await?, producer));
        }
        let links = consumers.iter().map(|(link, _)| link).chain(producers.iter().map(|(link, _)| link));
        let version = links.filter_map(|link| link.server_version().map(String::from)).next();
        let _ = self.reports.send(Report::Connected(version));
        if wait_for(&mut phase, Phase::Load).await == Phase::Stop {
            return Ok(());
        }
        let mut consuming = JoinSet::new();
        for (link, consumer) in consumers {
            consuming.spawn(consume(link, consumer, self.shared.clone(), self.recorder.clone()));
        }
        let mut publishing = JoinSet::new();
        for (link, producer) in producers {
            publishing.spawn(publish(link, producer, self.shared.clone(), self.recorder.clone()));
        }
        all(&mut publishing).await?;
        let _ = self.reports.send(Report::Published);
        // Dropped at the end, which ends the remaining consumers.
        tokio::select! {
            ended = all(&mut consuming) => {
                ended?;
                let _ = self.reports.send(Report::Consumed);
            }
            _ = wait_for(&mut phase, Phase::Stop) => {}
        }
        Ok(())
    }
}

/// Waits for all tasks. A panic of one fails its run, which has measured nothing.
async fn all(connections: &mut JoinSet<()>) -> Result<(), String> {
    while let Some(ended) = connections.join_next().await {
        ended.map_err(|e| format!("a connection's task failed, which is a bug of the generator: {e}"))?;
    }
    Ok(())
}

async fn wait_for(phase: &mut watch::Receiver<Phase>, wanted: Phase) -> Phase {
    // The sender is dropped only when the run is over.
    phase.wait_for(|phase| *phase == wanted || *phase == Phase::Stop).await.map_or(Phase::Stop, |phase| *phase)
}

async fn connected(producer: &Producer, shared: &RunContext) -> Result<Connection, String> {
    Connection::producer(&shared.options, producer.number, &producer.topics).await
}

async fn subscribed(consumer: &Consumer, shared: &RunContext) -> Result<Connection, String> {
    Connection::consumer(&shared.options, consumer.topic, consumer.channel).await
}

async fn publish(link: Connection, mut producer: Producer, shared: Arc<RunContext>, recorder: Arc<Recorder>) {
    let last = shared.clock.instant(shared.course().end) + shared.options.drain;
    let mut link = Some(link);
    let work = async {
        loop {
            if let Some(mut open) = link.take() {
                match std::future::poll_fn(|cx| producer.poll(cx, &mut open, &shared, &recorder)).await {
                    Ok(()) => return,
                    Err(error) => {
                        recorder.lock().error(&error, 1);
                        producer.give_up(&recorder, "the connection ended");
                    }
                }
            }
            if producer.is_done() || shared.clock.now() >= shared.course().end {
                return;
            }
            tokio::time::sleep(RECONNECT_AFTER).await;
            link = connected(&producer, &shared).await.map_err(|error| recorder.lock().error(&error, 1)).ok();
        }
    };
    let in_time = tokio::time::timeout_at(last.into(), work).await.is_ok();
    if !in_time {
        producer.give_up(&recorder, "--drain was over");
    }
    producer.count_behind(&shared, &recorder);
}

async fn consume(link: Connection, mut consumer: Consumer, shared: Arc<RunContext>, recorder: Arc<Recorder>) {
    let mut link = Some(link);
    loop {
        if let Some(mut open) = link.take() {
            open.start(shared.options.rdy);
            match std::future::poll_fn(|cx| consumer.poll(cx, &mut open, &shared, &recorder)).await {
                Ok(()) => return,
                Err(error) => recorder.lock().error(&error, 1),
            }
        }
        tokio::time::sleep(RECONNECT_AFTER).await;
        link = subscribed(&consumer, &shared).await.map_err(|error| recorder.lock().error(&error, 1)).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_that_panics_fails_the_run() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let ended = runtime.block_on(async {
            let mut connections = JoinSet::new();
            connections.spawn(async {});
            connections.spawn(async { panic!("made up") });
            all(&mut connections).await
        });
        assert!(ended.is_err_and(|why| why.contains("bug")));
    }
}
