//! Everything at once: many requests with heavy-tailed lengths and shared beginnings on a tiny hybrid whose pools hold
//! 60 % of what they would fill, with speculation, host memory, kept prefixes and cancellations.
//!
//! `CACHEPLAN_SOAK_REQUESTS` asks for more requests than the suite has time for; `cargo xtask soak` does.

use std::path::PathBuf;

use cacheplan_managers::CountingAllocator;
use cacheplan_planner::{Budget, Unit};
use cacheplan_runtime::{Finish, Follow, Output, Request, Sampling, Session, SessionOptions};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const LIMITS: &str = "max_seq_len = 192\nmax_num_tokens = 96\ntokens_per_block = 8\n";
const CROWD: &str = "max_batch_size = 8\n[speculation]\ndraft_tokens = 3\n[host]\nbytes = '6MiB'\n\
                     [workload]\ncheckpoints_per_sequence = 2\n";

/// What logits of two runs differ by that sum in another order.
const ROUNDING: f32 = 1e-4;

fn count() -> usize {
    std::env::var("CACHEPLAN_SOAK_REQUESTS").map_or(60, |count| count.parse().unwrap())
}

fn open(budget: &str, reuse_prefixes: bool) -> Session {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/nemotron_h");
    let budget = Budget::from_toml(&format!("{LIMITS}{budget}"), "soak").unwrap();
    let options = SessionOptions { budget, reuse_prefixes, ignore_eos: true, ..SessionOptions::default() };
    Session::open(&folder, options).unwrap()
}

struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }

    /// Heavy-tailed: half are below twice `least`, a tenth above ten times.
    fn length(&mut self, least: usize, most: usize) -> usize {
        (least * 1000 / (1 + self.below(1000))).min(most)
    }
}

/// Requests, some of which go on from what others began with.
fn requests(random: &mut Random, count: usize) -> Vec<Request> {
    let tokens = |random: &mut Random, count: usize| -> Vec<u32> {
        // Short patterns come again, so that there is something to guess.
        let pattern: Vec<u32> = (0..1 + random.below(12)).map(|_| 3 + random.below(90) as u32).collect();
        pattern.into_iter().cycle().take(count).collect()
    };
    let shared: Vec<Vec<u32>> = (0..12)
        .map(|_| {
            let length = random.length(8, 80);
            tokens(random, length)
        })
        .collect();
    let request = |_| {
        let mut prompt = if random.below(4) > 0 { shared[random.below(shared.len())].clone() } else { Vec::new() };
        let length = random.length(3, 60);
        prompt.extend(tokens(random, length));
        let sampling = match random.below(3) {
            0 => Sampling::default(),
            1 => Sampling { temperature: 0.9, top_k: 40, seed: random.below(1 << 30) as u64, ..Sampling::default() },
            // Whatever came often comes again, so that guesses are right.
            _ => Sampling { frequency_penalty: -4.0, ..Sampling::default() },
        };
        let most = 192 - prompt.len();
        let tenant = random.below(3) as u16;
        Request { sampling, tenant, ..Request::new(prompt, random.length(4, most.min(48))) }
    };
    (0..count).map(request).collect()
}

/// Gives up some requests before they begin, some while they run or wait.
struct Fickle {
    /// How often each is asked for before it is given up.
    patience: Vec<Option<usize>>,
    ended: usize,
}

impl Follow for Fickle {
    fn wants(&mut self, place: usize) -> bool {
        match &mut self.patience[place] {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    fn finished(&mut self, place: usize, output: &Output) {
        self.ended += 1;
        assert!(self.patience[place].is_some() || output.finish == Finish::Length);
    }
}

impl Fickle {
    fn new(requests: usize) -> Self {
        let mut random = Random(77);
        let patience = (0..requests).map(|_| (random.below(10) == 0).then(|| random.below(24))).collect();
        Self { patience, ended: 0 }
    }
}

/// Fails unless rounding decides between the token at which an output parts from the request's own and that: logits that
/// differ by no more choose it.
fn assert_rounding_decides(alone: &mut Session, place: usize, request: &Request, output: &Output) {
    let own = alone.generate(std::slice::from_ref(request), true).unwrap().outputs.remove(0);
    let at = output.tokens.iter().zip(&own.tokens).take_while(|(ours, theirs)| ours == theirs).count();
    let logits: Vec<f32> = own.logits.unwrap().get(at).unwrap().to_vec1().unwrap();
    let known = [&request.prompt[..], &own.tokens[..at]].concat();
    let mut random = Random(1);
    let chosen = (0..500).any(|_| {
        let mut noise = || ROUNDING * (random.below(2001) as f32 / 1000.0 - 1.0);
        let noisy: Vec<f32> = logits.iter().map(|logit| logit + noise()).collect();
        request.sampling.choose(&noisy, &known, request.prompt.len()) == Some(output.tokens[at])
    });
    let (ours, theirs) = (&output.tokens, &own.tokens);
    assert!(chosen, "request {place} parts at token {at}: {ours:?} instead of {theirs:?}");
}

#[test]
fn all_requests_finish_or_are_cancelled_with_their_own_outputs_and_nothing_is_left() {
    let mut random = Random(2026);
    let requests = requests(&mut random, count());
    // How much would be in use at most.
    let mut roomy = open("max_batch_size = 8\n", false);
    roomy.generate(&requests, false).unwrap();
    let peaks: Vec<(String, u64)> =
        roomy.stats().unwrap().pools.into_iter().map(|pool| (pool.id, pool.high_water)).collect();
    drop(roomy);

    let mut crowded = open(CROWD, true);
    let mut plan = crowded.plan().clone();
    for pool in plan.pools.iter_mut().filter(|pool| pool.unit == Unit::Block) {
        let (_, peak) = peaks.iter().find(|(id, _)| *id == pool.id).unwrap();
        // Never less than one sequence and its guesses.
        pool.units = pool.reserved + (peak * 6 / 10).max(192 / 8 + 1);
        pool.bytes = pool.units * pool.unit_bytes;
    }
    crowded.share_among(3).unwrap();
    crowded.parts().1.resize(&plan).unwrap();
    let mut fickle = Fickle::new(requests.len());
    let generation = crowded.serve(&requests, false, &mut fickle).unwrap();

    assert_eq!((fickle.ended, generation.outputs.len()), (requests.len(), requests.len()));
    let cancelled = generation.outputs.iter().filter(|output| output.finish == Finish::Cancelled).count();
    for pool in crowded.caches().bytes().unwrap() {
        assert_eq!(pool.actual_bytes, Some(pool.planned_bytes), "{}", pool.id);
    }
    let metrics = crowded.reuse().unwrap().unwrap();
    crowded.forget_prefixes().unwrap();
    let stats = crowded.stats().unwrap();
    assert!(stats.pools.iter().all(|pool| pool.used == 0), "{stats:?}");
    assert!(crowded.caches().manager().unwrap().book().sequences().next().is_none());
    assert_eq!(stats.host.unwrap().used_bytes, crowded.caches().prefix_host_bytes().unwrap());

    let mut alone = open("max_batch_size = 1\n", false);
    let mut parted = 0;
    for (place, (request, output)) in requests.iter().zip(&generation.outputs).enumerate() {
        let own = alone.generate(std::slice::from_ref(request), false).unwrap().outputs.remove(0);
        if output.finish != Finish::Cancelled {
            assert_eq!(output.tokens.len(), request.max_new_tokens);
        }
        if output.tokens != own.tokens[..output.tokens.len()] {
            assert_rounding_decides(&mut alone, place, request, output);
            parted += 1;
        }
    }

    let speed = &generation.speed;
    println!(
        "{} requests, {cancelled} cancelled, {parted} parted where rounding decides; {} tokens generated in {} steps and {:.1} s; \
         {} preemptions, {} of them to the host; {} of {} guesses accepted; {:.3} of the prompts' tokens were cached",
        requests.len(),
        speed.generated_tokens,
        speed.steps,
        speed.seconds,
        speed.preemptions,
        speed.offloads,
        speed.accepted_tokens,
        speed.drafted_tokens,
        metrics.hit_rate(),
    );
    assert!(cancelled > 0 && speed.offloads > 0 && speed.accepted_tokens > 0 && metrics.hit_tokens > 0);
}
