//! How close each op comes to what this machine can do.
//!
//! Every figure is measured beside the machine's own: bytes per second over the rate of a plain copy or a plain
//! read, or floating-point operations per second over the rate of a large matrix product, in the same run.
//! A copy counts the bytes it reads and the bytes it writes. What reads and multiplies is bound by what takes longer.

mod cases;
mod machine;

use crate::backend::Backend;
use crate::cases::{Data, Work};
use crate::error::Result;
use std::time::{Duration, Instant};

use machine::Machine;

/// What bounds an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Reading and writing memory.
    Copy,
    /// Reading memory.
    Read,
    /// Floating-point operations.
    Compute,
}

impl Bound {
    /// Its name in tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Read => "read",
            Self::Compute => "product",
        }
    }

    /// Bytes or operations that it counts.
    fn of(self, work: Work) -> f64 {
        match self {
            Self::Copy | Self::Read => work.bytes as f64,
            Self::Compute => work.flops as f64,
        }
    }
}

/// One measured op.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The op.
    pub op: &'static str,
    /// Its sizes by name.
    pub sizes: Vec<(&'static str, usize)>,
    /// What else tells it from its neighbours.
    pub variant: String,
    /// What bounds it: what takes longest of all that may.
    pub bound: Bound,
    /// What one call cannot do without.
    pub work: Work,
    /// Both in one line.
    shape: String,
    /// One call in the best round.
    time: Time,
    /// As much work in the machine's own best round.
    machine: Time,
    /// Operations per second that the processor does on registers; of what arithmetic bounds.
    peak: Option<f64>,
    /// The part of the machine's own rate that is asked of the op, where one is.
    target: Option<f64>,
}

impl Measurement {
    /// The headings of the columns that a measurement prints as.
    pub fn headings() -> String {
        format!(
            "bound by: what takes longest of copy, read and product, with the machine's rate in the same run;\n\
             part: of that rate, by the wall; processor: by processor time; target: what is asked;\n\
             peak: of the processor's registers\n\
             {:<18} {:>10} {:>13} {:>13} {:>5} {:>9} {:>6} {:>9}",
            "op", "time", "achieved", "bound by", "part", "processor", "target", "peak GF/s"
        )
    }

    /// Seconds of one call.
    pub fn seconds(&self) -> f64 {
        self.time.wall
    }
}

impl std::fmt::Display for Measurement {
    /// A line of a table, its shape below it: the op, the time by the wall, the rate that it reaches and the machine's own
    /// (of a copy, a read or a product), the part of it by the wall and by processor time, the part asked for, and
    /// beside a product the processor's peak, which no library reaches.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unit = if self.bound == Bound::Compute { "GF/s" } else { "GB/s" };
        let Self { op, shape, .. } = self;
        let rate = |time: Time| self.bound.of(self.work) / time.wall / 1e9;
        let machine = format!("{} {:.1}", self.bound.name(), rate(self.machine));
        write!(f, "{op:<18} {:>7.3} ms {:>8.1} {unit}", self.time.wall * 1e3, rate(self.time))?;
        write!(f, " {machine:>13} {:>5.2} {:>9.2}", self.part(), self.processor_part())?;
        match self.target {
            Some(target) => write!(f, " {target:>6.2}")?,
            None => write!(f, " {:>6}", "")?,
        }
        self.peak.map_or(Ok(()), |peak| write!(f, " {:>9.1}", peak / 1e9))?;
        write!(f, "\n    {shape}; {:.3} ms CPU", self.time.processor * 1e3)
    }
}

/// How long something took.
#[derive(Clone, Copy, Debug)]
struct Time {
    /// Seconds by the wall.
    wall: f64,
    /// Seconds of processor time of all threads. Other load on the processors lengthens it little.
    processor: f64,
}

impl Time {
    /// The least of each figure, so that other load spoils one round of either.
    fn best(self, other: Self) -> Self {
        Self { wall: self.wall.min(other.wall), processor: self.processor.min(other.processor) }
    }

    fn times(self, factor: f64) -> Self {
        Self { wall: self.wall * factor, processor: self.processor * factor }
    }
}

/// A running measurement.
struct Stopwatch {
    start: Instant,
    processor: f64,
}

impl Stopwatch {
    fn start() -> Self {
        Self { start: Instant::now(), processor: processor_seconds() }
    }

    fn stop(&self) -> Time {
        Time { wall: self.start.elapsed().as_secs_f64(), processor: processor_seconds() - self.processor }
    }
}

/// Processor time of this process so far; 0 where the system does not tell.
fn processor_seconds() -> f64 {
    #[cfg(unix)]
    {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes one `timespec`.
        if unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) } == 0 {
            return time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9;
        }
    }
    0.0
}

impl Measurement {
    /// Part of the machine's own rate, by the wall.
    pub fn part(&self) -> f64 {
        self.machine.wall / self.time.wall
    }

    /// Part of the machine's own rate, by processor time.
    fn processor_part(&self) -> f64 {
        self.machine.processor / self.time.processor
    }
}

/// Rounds of each op. Each takes the machine's own rate too, since other load comes and goes; the best of both count.
const ROUNDS: usize = 15;
/// Least time of one round of an op.
const ROUND: Duration = Duration::from_millis(30);

/// Memory to read beside something else, for its rate at that moment.
#[derive(Debug)]
pub struct ReadBuffer(Vec<f32>);

impl ReadBuffer {
    /// As large as what it is compared with: a smaller one would lie in the caches in part.
    pub fn new(bytes: usize) -> Self {
        Self(vec![1.0; bytes / size_of::<f32>()])
    }

    /// Bytes per second at which all threads together read it once.
    pub fn rate(&self) -> f64 {
        let watch = Stopwatch::start();
        machine::read(&self.0);
        size_of_val(&*self.0) as f64 / watch.stop().wall
    }
}

/// Threads that the ops and the machine's own rates are measured with.
pub fn threads() -> usize {
    rayon::current_num_threads()
}

/// Measures the ops whose name, sizes and number formats have every word of `filter` in them, and hands each to `report` as
/// soon as it is there.
///
/// From then on the process keeps the memory that it frees.
pub fn run(filter: &str, mut report: impl FnMut(&Measurement)) -> Result<()> {
    let mut cases = cases::all();
    cases.retain(|measured| {
        let described = format!("{}, {}", measured.op, measured.case);
        filter.split_whitespace().all(|word| described.contains(word))
    });
    if cases.is_empty() {
        // The machine is not measured for nothing.
        return Ok(());
    }
    keep_freed_memory();
    let machine = Machine::new()?;
    let on = Backend::Cpu.run();
    for measured in cases {
        let case = &measured.case;
        let mut data = Data::Dense(1);
        let calls = (0..measured.layers).map(|_| (case.prepare)(&mut data)).collect::<Result<Vec<_>>>()?;
        let mut layers = calls.iter().cycle();
        let mut call = || layers.next().map_or(Ok(()), |call| call(&on).map(drop));
        call()?;
        let never = Time { wall: f64::INFINITY, processor: f64::INFINITY };
        let mut limits: Vec<_> = measured.bounds.iter().map(|&bound| (bound, never)).collect();
        let mut time = never;
        for _ in 0..ROUNDS {
            for (bound, own) in &mut limits {
                *own = own.best(machine.seconds_per_unit(*bound)?.times(bound.of(case.work)));
            }
            let watch = Stopwatch::start();
            let mut calls = 0;
            while watch.start.elapsed() < ROUND {
                call()?;
                calls += 1;
            }
            time = time.best(watch.stop().times(1.0 / f64::from(calls)));
        }
        let Some((bound, own)) = limits.into_iter().max_by(|(_, a), (_, b)| a.wall.total_cmp(&b.wall)) else {
            continue;
        };
        report(&Measurement {
            op: measured.op,
            sizes: case.sizes.clone(),
            variant: case.variant.clone(),
            bound,
            work: case.work,
            shape: case.to_string(),
            time,
            machine: own,
            peak: (bound == Bound::Compute).then(machine::peak),
            target: measured.target,
        });
    }
    Ok(())
}

/// Makes the allocator keep what is freed. By default it returns large outputs to the system after each call, and
/// faulting their pages in anew then takes longer than the op that writes them.
fn keep_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: sets two parameters of the allocator, under its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_MAX, 0);
        libc::mallopt(libc::M_TRIM_THRESHOLD, i32::MAX);
    }
}
