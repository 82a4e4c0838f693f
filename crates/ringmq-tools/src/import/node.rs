//! A node of the import's own: `ringmq serve` on the data path that was named, reachable from this machine alone, stopped in the end.

use super::ImportError;
use crate::http::Http;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of a node's recovery.
const STARTUP_LIMIT: Duration = Duration::from_secs(600);

/// Runs until [`OwnNode::stop`], or until this is dropped.
pub struct OwnNode {
    child: Child,
    log: File,
    pub native: String,
    pub http: String,
}

impl OwnNode {
    /// Starts the node, with further flags of `serve`, and waits until it serves, or until `is_stopped` is true.
    pub async fn start(data_path: &Path, flags: &[String], is_stopped: &dyn Fn() -> bool) -> Result<OwnNode, ImportError> {
        let failed = |why: String| ImportError::Node { path: data_path.to_path_buf(), why };
        let io = |what: &'static str| move |e: std::io::Error| format!("{what}: {e}");
        let program = std::env::current_exe().map_err(io("the path of the ringmq program is unknown")).map_err(failed)?;
        let port = || free_port().map_err(io("no free port was found")).map_err(failed);
        let (native, http) = (port()?, port()?);
        let log_path = std::env::temp_dir().join(format!("ringmq-import-{}.log", std::process::id()));
        let log = File::options().read(true).write(true).create(true).truncate(true).open(&log_path);
        let log = log.map_err(io("the node's log cannot be written")).map_err(failed)?;
        // It is read through this descriptor alone.
        let _ = std::fs::remove_file(&log_path);
        let to_log = log.try_clone().map_err(io("the node's log cannot be opened twice")).map_err(failed)?;
        let mut command = Command::new(program);
        // By its own name, since a binary that is called `nsqd` takes no `serve`.
        command.arg0("ringmq").arg("serve").args(flags).arg("--import-nsqd=false");
        command.arg(format!("--data-path={}", data_path.display()));
        command.arg("--tcp-address=127.0.0.1:0").arg(format!("--http-address={http}")).arg(format!("--native-address={native}"));
        // No client is to find the node, and the import reaches it in plaintext.
        command.args(["--lookupd-tcp-address=", "--lookupd-http-address=", "--statsd-address="]);
        command.args(["--native-tls-cert=", "--native-tls-key=", "--native-tls-client-ca="]);
        command.args(["--https-address=", "--tls-required=false", "--tls-client-auth-policy="]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(to_log);
        // A Ctrl-C is the import's alone: it stops the node itself.
        command.process_group(0);
        end_with_this_process(&mut command);
        let child = command.spawn().map_err(|e| failed(e.to_string()))?;
        let mut node = OwnNode { child, log, native, http };
        node.wait_ready(data_path, is_stopped).await?;
        Ok(node)
    }

    async fn wait_ready(&mut self, data_path: &Path, is_stopped: &dyn Fn() -> bool) -> Result<(), ImportError> {
        let failed = |why: String| ImportError::Node { path: data_path.to_path_buf(), why };
        let (http, began) = (Http::new(&self.http), Instant::now());
        while http.get("/info").await.is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(failed(format!("it ended with {status}:\n{}", self.last_lines())));
            }
            if is_stopped() {
                return Err(ImportError::Interrupted);
            }
            if began.elapsed() > STARTUP_LIMIT {
                return Err(failed(format!("the node does not answer after {STARTUP_LIMIT:?}:\n{}", self.last_lines())));
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        Ok(())
    }

    fn last_lines(&mut self) -> String {
        let mut text = vec![];
        let read = self.log.seek(SeekFrom::Start(0)).and_then(|_| self.log.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        read.map_or_else(|e| e.to_string(), |_| lines[lines.len().saturating_sub(5)..].join("\n"))
    }

    /// Stops the node cleanly.
    pub fn stop(mut self, data_path: &Path) -> Result<(), ImportError> {
        self.terminate();
        let status = self.child.wait().map_err(|e| e.to_string());
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => {
                let why = format!("it ended with {status}:\n{}", self.last_lines());
                Err(ImportError::Node { path: data_path.to_path_buf(), why })
            }
            Err(why) => Err(ImportError::Node { path: data_path.to_path_buf(), why }),
        }
    }

    fn terminate(&self) {
        // SAFETY: our own child, which was not waited for, so that the id is still its own.
        unsafe { libc::kill(self.child.id() as i32, libc::SIGTERM) };
    }
}

impl Drop for OwnNode {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.terminate();
            let _ = self.child.wait();
        }
    }
}

/// Makes the child receive SIGTERM when this process is killed: a node that outlived its import would keep the data path.
fn end_with_this_process(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: prctl and getppid are async-signal-safe and touch no memory.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            // The kernel sends the signal only for a death after prctl; a parent that died earlier has been replaced.
            if libc::getppid() as u32 != parent { Err(std::io::ErrorKind::Interrupted.into()) } else { Ok(()) }
        });
    }
}

/// A port that was free a moment ago.
fn free_port() -> std::io::Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}
