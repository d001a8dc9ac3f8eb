//! A compiler that is always at work on one processor: gcc on a source that is made up, again and again.

use anyhow::{Context as _, Result, bail};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A source of so many functions, of some twenty lines each, no two the same.
pub(super) fn source(functions: u32) -> String {
    let mut text = String::new();
    for n in 0..functions {
        let (seed, factor) = (n.wrapping_mul(2_654_435_761), (n * 7919 % 65_521) | 1);
        let (shift, step, divisor, cases, turn) = (n % 13 + 1, n % 5 + 1, n % 7 + 1, n % 6 + 4, n % 11 + 1);
        // writing to a String does not fail
        let _ = write!(
            text,
            "static unsigned f{n}(unsigned *a, unsigned n, unsigned k) {{
  unsigned s = {seed}u, i, j;
  for (i = 0; i < n; i++) {{
    for (j = i & 3; j < n; j += {step}) {{
      a[j] = (a[j] ^ (s >> {shift})) * {factor}u + a[(i + j) % n];
      s += a[j] / (k + {divisor}u);
    }}
    switch (s % {cases}u) {{
      case 0: s ^= a[i]; break;
      case 1: s = s << {turn} | s >> {}; break;
      case 2: a[i] += s; s -= k; break;
      default: s += i * k;
    }}
  }}
  return s;
}}

",
            32 - turn
        );
    }
    text.push_str("unsigned run(unsigned *a, unsigned n, unsigned k) {\n  unsigned s = 0;\n");
    for n in 0..functions {
        let _ = writeln!(text, "  s += f{n}(a, n, k + s);");
    }
    text.push_str("  return s;\n}\n");
    text
}

/// When a run of the compiler began, and when it ended.
type Run = (Instant, Instant);

/// A compiler at work, or several at once as `make -j` has them, until finished with.
#[derive(Debug)]
pub(super) struct Compiler {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Result<Vec<Run>>>>,
}

impl Compiler {
    /// Begins to compile `file` on a processor, so many times at once.
    pub(super) fn start(file: &Path, processor: usize, jobs: usize) -> Compiler {
        let stop = Arc::new(AtomicBool::new(false));
        let begin = |job: usize| {
            let (stopped, file) = (stop.clone(), file.to_owned());
            std::thread::spawn(move || {
                let mut runs = Vec::new();
                while !stopped.load(Ordering::Acquire) {
                    let begun = Instant::now();
                    compile(&file, &object(&file, job), processor)?;
                    runs.push((begun, Instant::now()));
                }
                Ok(runs)
            })
        };
        let threads = (0..jobs).map(begin).collect();
        Compiler { stop, threads }
    }

    /// Lets it end; the mean time of the runs that lie between the two times, in seconds.
    pub(super) fn finish(mut self, from: Instant, to: Instant) -> Result<f64> {
        let mut runs = Vec::new();
        for ended in self.stop() {
            let Ok(its) = ended else { bail!("a compiler's thread failed") };
            runs.extend(its?);
        }
        mean_s(&runs, from, to).context("no run of the compiler fits into the load: --seconds is too short for it")
    }

    /// Waits for all to end, whatever became of some; what each measured.
    fn stop(&mut self) -> Vec<std::thread::Result<Result<Vec<Run>>>> {
        self.stop.store(true, Ordering::Release);
        self.threads.drain(..).map(JoinHandle::join).collect()
    }
}

impl Drop for Compiler {
    fn drop(&mut self) {
        // what they measured is of no use any more
        drop(self.stop());
    }
}

/// The mean time of the runs that lie between two times.
fn mean_s(runs: &[Run], from: Instant, to: Instant) -> Option<f64> {
    let within = runs.iter().filter(|(begun, ended)| *begun >= from && *ended <= to);
    let spans: Vec<Duration> = within.map(|(begun, ended)| *ended - *begun).collect();
    (!spans.is_empty()).then(|| spans.iter().sum::<Duration>().as_secs_f64() / spans.len() as f64)
}

/// Where a job's object file lies.
fn object(file: &Path, job: usize) -> PathBuf {
    file.with_extension(format!("{job}.o"))
}

/// Compiles a file once.
fn compile(file: &Path, object: &Path, processor: usize) -> Result<()> {
    let mut command = Command::new("taskset");
    command.args(["-c", &processor.to_string(), "gcc", "-O2", "-c", "-o"]).arg(object).arg(file);
    let done = command.stdin(Stdio::null()).output().context("cannot run gcc")?;
    if !done.status.success() {
        bail!("gcc failed ({}): {}", done.status, String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_as_long_as_it_is_asked_to_be_and_compiles() {
        let text = source(40);
        assert!(text.lines().count() > 40 * 17, "{}", text.lines().count());
        assert_eq!(text, source(40), "the same in every run");
        lab::require_programs(&["gcc", "taskset"]);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("made.c");
        std::fs::write(&file, text).unwrap();
        let begun = Instant::now();
        let compiler = Compiler::start(&file, 0, 2);
        let made = || (0..2).all(|job| object(&file, job).exists());
        while !made() && !compiler.threads.iter().any(JoinHandle::is_finished) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let both = made();
        let seconds = compiler.finish(begun, begun + Duration::from_secs(3600)).unwrap();
        assert!(both && seconds > 0.0, "{seconds}");
        std::fs::write(&file, "no C").unwrap();
        let error = Compiler::start(&file, 0, 1).finish(begun, begun).unwrap_err().to_string();
        assert!(error.starts_with("gcc failed") || error.starts_with("no run"), "{error}");
        assert!(compile(&file, &object(&file, 0), 0).unwrap_err().to_string().contains("made.c"));
    }

    #[test]
    fn only_whole_runs_count() {
        let zero = Instant::now();
        let at = |s: u64| zero + Duration::from_secs(s);
        let runs = [(at(0), at(2)), (at(2), at(4)), (at(4), at(8)), (at(8), at(10))];
        assert_eq!(mean_s(&runs, at(1), at(9)), Some(3.0));
        assert_eq!(mean_s(&runs, at(1), at(3)), None);
    }
}
