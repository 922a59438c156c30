//! Which sizes are tried, and what follows from them.
//!
//! The device first, over its splits; then host memory in doublings, then the disk below all of it, each over splits of
//! what lies below. Between the last size that is too small and the first that is not, three halvings.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cacheplan_planner::StoredStates;

use super::answer::{Gain, TierPoint, TiersAnswer};
use super::error::TiersError;
use super::question::TiersQuestion;
use super::replay::{Job, Replay};
use super::sizes::{Kinds, Sizes, Split};
use crate::simulate::TraceRequest;

/// Shares of states, or of windows, that are tried beside the plan's.
const SHARES: [f64; 5] = [0.05, 0.1, 0.2, 0.4, 0.7];
/// Halvings of the largest size, the smallest first.
const STEPS: [u32; 6] = [5, 4, 3, 2, 1, 0];
/// Between a size that is too small and one that is not.
const HALVINGS: usize = 3;
/// Less is no reason for a larger tier.
const NEAR: f64 = 0.01;
/// Tokens between states that are tried.
const DISTANCES: [usize; 6] = [512, 1024, 2048, 4096, 8192, 16_384];
const GIB: u64 = 1 << 30;

impl TiersQuestion<'_> {
    /// Replays the requests until the smallest tiers are found.
    ///
    /// # Errors
    /// As [`TiersError`] says.
    pub fn answer(&self, requests: &[TraceRequest]) -> Result<TiersAnswer, TiersError> {
        self.validate()?;
        Search::new(*self, &Replay::of(*self, requests)?).answer()
    }
}

struct Search<'a> {
    question: TiersQuestion<'a>,
    replay: &'a Replay<'a>,
    replays: AtomicUsize,
}

impl<'a> Search<'a> {
    fn new(question: TiersQuestion<'a>, replay: &'a Replay<'a>) -> Self {
        Self { question, replay, replays: AtomicUsize::new(0) }
    }

    fn answer(&self) -> Result<TiersAnswer, TiersError> {
        let TiersQuestion { host, disk, target, .. } = self.question;
        let ceiling = self.replay.ceiling()?;
        let alone: Vec<Job> = self.splits().map(|split| self.job(split, split, 0, 0)).collect();
        let (planned, best) = self.first_and_best(&alone)?;
        let mut curve = vec![best];
        let reached = |point: &TierPoint| point.hit_rate >= target.unwrap_or(ceiling - NEAR);
        for step in STEPS.into_iter().filter(|_| host > 0) {
            curve.extend(self.best_below(&curve, host >> step, 0)?);
        }
        if disk > 0 && !curve.iter().any(reached) {
            for step in STEPS {
                curve.extend(self.best_below(&curve, host, disk >> step)?);
            }
        }
        let chosen = match curve.iter().position(reached) {
            Some(0) => Some(curve[0].clone()),
            Some(at) => Some(self.narrowed(&curve[at - 1], &curve[at], reached)?),
            None => None,
        };
        let chosen = self.cheaper(chosen, reached)?;
        let at = chosen.as_ref().or(curve.last()).unwrap_or(&planned).clone();
        let (gains, distances, storages) = (self.gains(&at)?, self.distances(&at)?, self.storages(&at)?);
        let gib = |bytes: u64| bytes as f64 / GIB as f64;
        Ok(TiersAnswer {
            requests: self.replay.requests(),
            left_out: self.replay.left_out,
            prompt_tokens: self.replay.prompt_tokens(),
            page: self.replay.base().page,
            unit_bytes: self.replay.unit_bytes,
            stored_state_bytes: self.replay.stored_bytes(self.question.stored),
            running: self.replay.base().concurrency,
            links: self.question.links,
            bounded: self.question.compute.is_some(),
            ceiling,
            planned,
            curve,
            target,
            price: self.question.prices.map(|[host, disk]| gib(at.host()) * host + gib(at.disk()) * disk),
            chosen,
            gains,
            distances,
            storages,
            replays: self.replays.load(Ordering::Relaxed),
        })
    }

    /// The plan's own split, then others.
    fn splits(&self) -> impl Iterator<Item = Split> {
        let planned = Split::in_proportion_to(self.replay.planned);
        let (states, windows) = (self.replay.base().states, self.replay.has_windows());
        let others = SHARES.into_iter().filter_map(move |share| match (states, windows) {
            (true, _) => Some(Split { states: share, windows: planned.windows * (1.0 - share) }),
            (false, true) => Some(Split { states: 0.0, windows: share }),
            (false, false) => None,
        });
        std::iter::once(planned).chain(others)
    }

    fn job(&self, device: Split, lower: Split, host: u64, disk: u64) -> Job {
        let device = device.of(self.replay.planned.bytes());
        let sizes = Sizes { device, host: lower.of(host), disk: lower.of(disk) };
        Job { sizes, distance: self.replay.base().prefill_chunk, stored: self.question.stored }
    }

    /// The first of these, and the one with the most hits; of equals the first.
    fn first_and_best(&self, jobs: &[Job]) -> Result<(TierPoint, TierPoint), TiersError> {
        let points = self.all(jobs)?;
        let first = points.first().cloned().flatten().ok_or_else(|| self.replay.too_small())?;
        let best = best(points.into_iter().flatten().collect()).unwrap_or_else(|| first.clone());
        Ok((first, best))
    }

    /// The best split of tiers of this size: of all where there were none below, else of those like the last best.
    fn best_below(&self, curve: &[TierPoint], host: u64, disk: u64) -> Result<Option<TierPoint>, TiersError> {
        let Some(last) = curve.last() else { return Ok(None) };
        let share = |split: Split| split.states + split.windows;
        let best_share = share(last.lower_split);
        let is_first = last.host() + last.disk() == 0 || best_share == 0.0;
        let is_like = |split: &Split| (0.45..=2.1).contains(&(share(*split) / best_share));
        let mut jobs = Vec::new();
        if !is_first {
            jobs.push(self.job(last.device_split, last.lower_split, host, disk));
        }
        for split in self.splits().filter(|split| is_first || is_like(split)) {
            jobs.push(self.job(last.device_split, split, host, disk));
            if is_first && split != last.device_split {
                // What lies below holds what the device has no room for, so that the device's best split changes with it.
                jobs.push(self.job(split, split, host, disk));
            }
        }
        jobs.dedup();
        Ok(best(self.all(&jobs)?.into_iter().flatten().collect()))
    }

    /// A size between one that is too small and one that is not.
    fn narrowed(
        &self,
        small: &TierPoint,
        large: &TierPoint,
        reached: impl Fn(&TierPoint) -> bool,
    ) -> Result<TierPoint, TiersError> {
        let (mut low, mut found) = ([small.host(), small.disk()], large.clone());
        for _ in 0..HALVINGS {
            let middle = |low: u64, high: u64| low + high.saturating_sub(low) / 2;
            let (host, disk) = (middle(low[0], found.host()), middle(low[1], found.disk()));
            let jobs = [self.job(large.device_split, large.lower_split, host, disk)];
            match best(self.all(&jobs)?.into_iter().flatten().collect()).filter(&reached) {
                Some(point) => found = point,
                None => low = [host, disk],
            }
        }
        Ok(found)
    }

    /// With prices, the cheapest of some sizes that reach the target.
    fn cheaper(
        &self,
        chosen: Option<TierPoint>,
        reached: impl Fn(&TierPoint) -> bool,
    ) -> Result<Option<TierPoint>, TiersError> {
        let (Some([of_host, of_disk]), Some(chosen)) = (self.question.prices, &chosen) else { return Ok(chosen) };
        let price = |point: &TierPoint| point.host() as f64 * of_host + point.disk() as f64 * of_disk;
        let sizes = |most: u64| [0, most >> 6, most >> 4, most >> 2, most];
        let pairs = sizes(self.question.host).into_iter().flat_map(|host| {
            sizes(self.question.disk).map(|disk| self.job(chosen.device_split, chosen.lower_split, host, disk))
        });
        let jobs: Vec<Job> = pairs.collect();
        let points = self.all(&jobs)?.into_iter().flatten().filter(reached).chain([chosen.clone()]);
        Ok(points.min_by(|left, right| price(left).total_cmp(&price(right))))
    }

    fn gains(&self, at: &TierPoint) -> Result<Vec<Gain>, TiersError> {
        let (states, windows) = (self.replay.base().states, self.replay.has_windows());
        let has_keys = self.replay.unit_bytes[0] > 0;
        let TiersQuestion { host, disk, .. } = self.question;
        let step = |bytes: u64| GIB.max(bytes / 16);
        let of = |tier: fn(&mut Sizes) -> &mut Kinds, kind: fn(&mut Kinds) -> &mut u64, place: &'static str| {
            let mut sizes = at.sizes;
            let added = step(tier(&mut sizes).bytes());
            let bytes = kind(tier(&mut sizes));
            *bytes = bytes.saturating_add(added);
            (place, added, Job { sizes, distance: at.distance, stored: at.stored })
        };
        let mut tried = Vec::new();
        if has_keys {
            tried.push(of(|sizes| &mut sizes.device, |kinds| &mut kinds.keys, "device keys"));
        }
        if windows {
            tried.push(of(|sizes| &mut sizes.device, |kinds| &mut kinds.windows, "device windows"));
        }
        if states {
            tried.push(of(|sizes| &mut sizes.device, |kinds| &mut kinds.states, "device states"));
        }
        if host > 0 && has_keys {
            tried.push(of(|sizes| &mut sizes.host, |kinds| &mut kinds.keys, "host keys"));
        }
        if host > 0 && windows {
            tried.push(of(|sizes| &mut sizes.host, |kinds| &mut kinds.windows, "host windows"));
        }
        if host > 0 && states {
            tried.push(of(|sizes| &mut sizes.host, |kinds| &mut kinds.states, "host states"));
        }
        if disk > 0 {
            let added = step(at.disk());
            let more = at.lower_split.of(at.disk().saturating_add(added));
            let sizes = Sizes { disk: more, ..at.sizes };
            tried.push(("disk", added, Job { sizes, distance: at.distance, stored: at.stored }));
        }
        let jobs: Vec<Job> = tried.iter().map(|(.., job)| *job).collect();
        let gains = tried.iter().zip(self.all(&jobs)?).filter_map(|(&(place, added, _), point)| {
            let per_gib = (point?.hit_rate - at.hit_rate) / (added as f64 / GIB as f64);
            Some(Gain { place, added, per_gib })
        });
        Ok(gains.collect())
    }

    fn distances(&self, at: &TierPoint) -> Result<Vec<TierPoint>, TiersError> {
        if !self.replay.base().states {
            return Ok(Vec::new());
        }
        let page = self.replay.base().page;
        let tried = DISTANCES.into_iter().filter(|distance| *distance >= page && *distance != at.distance);
        let jobs: Vec<Job> = tried.map(|distance| Job { sizes: at.sizes, distance, stored: at.stored }).collect();
        let mut points: Vec<TierPoint> = self.all(&jobs)?.into_iter().flatten().chain([at.clone()]).collect();
        points.sort_by_key(|point| point.distance);
        Ok(points)
    }

    /// The same tiers with states stored in each way that takes less than the device's.
    fn storages(&self, at: &TierPoint) -> Result<Vec<TierPoint>, TiersError> {
        let has_lower = at.sizes.host.states + at.sizes.disk.states > 0;
        let smaller = |stored: &StoredStates| self.question.plan.stored_state_bytes(*stored).is_some();
        let tried = StoredStates::ALL.into_iter().filter(|stored| has_lower && *stored != at.stored && smaller(stored));
        let jobs: Vec<Job> = tried.map(|stored| Job { sizes: at.sizes, distance: at.distance, stored }).collect();
        if jobs.is_empty() {
            return Ok(Vec::new());
        }
        let mut points: Vec<TierPoint> = self.all(&jobs)?.into_iter().flatten().chain([at.clone()]).collect();
        points.sort_by_key(|point| StoredStates::ALL.iter().position(|stored| *stored == point.stored));
        Ok(points)
    }

    /// All of these, at once as far as there are processors.
    fn all(&self, jobs: &[Job]) -> Result<Vec<Option<TierPoint>>, TiersError> {
        self.replays.fetch_add(jobs.len(), Ordering::Relaxed);
        let threads = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let work = || {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = jobs.get(at) else { break };
                let point = self.replay.run(*job);
                found.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, point));
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads {
                scope.spawn(work);
            }
            work();
        });
        let mut found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        found.sort_by_key(|(at, _)| *at);
        found.into_iter().map(|(_, point)| point).collect()
    }
}

fn best(points: Vec<TierPoint>) -> Option<TierPoint> {
    points.into_iter().reduce(|best, point| if point.hit_rate > best.hit_rate { point } else { best })
}
