//! How many requests each second both pools and the link between them admit at most.

use serde::Serialize;

use super::{Disaggregation, Handover, Role, Side};
use crate::bound::PrefillBound;
use crate::request::PlanRequest;
use crate::solver::solve::last;

/// What one part admits at most.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ceiling {
    /// `link out of prefill`, `link into decode`, `computing prompts`, `room for prompts`, `writing tokens`.
    pub name: &'static str,
    /// The side whose devices end it.
    pub role: Role,
    /// Requests each second, over all devices of that side.
    pub per_second: f64,
    /// What it rests on, in one sentence.
    pub reason: String,
}

/// How many devices of one side keep those of the other busy, in the layouts that were asked about.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Balance {
    /// Prefill devices for each decode device.
    pub prefill_per_decode: f64,
    /// Requests each second of one prefill replica.
    pub of_prefill_replica: f64,
    /// Requests each second of one decode replica.
    pub of_decode_replica: f64,
}

/// What the devices of both sides do at best; absent where their rates, or the weights, are not known.
pub(super) struct DeviceRates {
    prefill: Option<Prompts>,
    decode: Option<Tokens>,
}

struct Prompts {
    /// Seconds of a replica for each prompt.
    seconds: f64,
    /// Seconds of a prompt by itself on a replica.
    alone: f64,
    source: &'static str,
}

struct Tokens {
    /// Sequences of a replica that write at once while the others arrive.
    writing: u64,
    /// Seconds of one step of them.
    step: f64,
    bound_by: &'static str,
    source: &'static str,
}

impl DeviceRates {
    pub(super) fn of(asked: &[PlanRequest; 2], sides: [&Side; 2], handing: f64, question: &Disaggregation) -> Self {
        let [prefill, decode] = sides;
        let bound = prefill.stages.first().and_then(|plan| asked[0].prefill(plan));
        let of_prompt = |bound: PrefillBound| Prompts {
            seconds: bound.seconds(0, question.prompt),
            alone: bound.alone(0, question.prompt),
            source: bound.source(),
        };
        Self { prefill: bound.map(of_prompt), decode: Tokens::of(&asked[1], decode, handing, question) }
    }

    pub(super) fn ceilings(&self, sides: [&Side; 2], handover: &Handover, question: &Disaggregation) -> Vec<Ceiling> {
        let [prefill, decode] = sides;
        let handing = handover.seconds(question.link);
        let mut ceilings = Vec::new();
        let mut add = |name, role, side: &Side, seconds: f64, reason: String| {
            // What takes no time limits nothing.
            if seconds > 0.0 {
                ceilings.push(Ceiling { name, role, per_second: side.replicas as f64 / seconds, reason });
            }
        };
        let carried = |bytes: u64| bytes as f64 / question.link;
        if let Some(Prompts { seconds, alone, source }) = &self.prefill {
            // Stages work on several at once.
            let each = if alone > seconds { format!(", one each {seconds:.4} s") } else { String::new() };
            let reason =
                format!("a bound: {alone:.4} s of a prompt alone on a replica{each}, by the rates of {source}");
            add("computing prompts", Role::Prefill, prefill, *seconds, reason);
            let held = prefill.sequences.max(1) as f64;
            let reason = format!("{} prompts at once, each held until it is handed over", prefill.sequences);
            add("room for prompts", Role::Prefill, prefill, (alone + handing) / held, reason);
        }
        let of_device = |bytes: u64| format!("{bytes} bytes of a request through its busiest device");
        let (sent, received) = (handover.sent_by_device, handover.received_by_device);
        add("link out of prefill", Role::Prefill, prefill, carried(sent), of_device(sent));
        add("link into decode", Role::Decode, decode, carried(received), of_device(received));
        if let Some(Tokens { writing, step, bound_by, source }) = &self.decode {
            // The first written token came with the prompt.
            let steps = (question.output - 1) as f64;
            let reason = format!(
                "a bound: {} sequences fit, of which {writing} write in steps of {step:.4} s ({bound_by}-bound), by the rates of {source}",
                decode.sequences
            );
            let seconds = (handing + steps * step) / decode.sequences.max(1) as f64;
            add("writing tokens", Role::Decode, decode, seconds, reason);
        }
        ceilings
    }
}

impl Balance {
    /// Of ceilings that say what each side admits; `None` where the rates of one are not known.
    pub(super) fn of(ceilings: &[Ceiling], sides: [&Side; 2]) -> Option<Self> {
        let lowest = |role: Role, named: &str| {
            ceilings.iter().find(|ceiling| ceiling.name == named)?;
            let own = ceilings.iter().filter(|ceiling| ceiling.role == role).map(|ceiling| ceiling.per_second);
            Some(own.fold(f64::INFINITY, f64::min))
        };
        let all = [lowest(Role::Prefill, "computing prompts")?, lowest(Role::Decode, "writing tokens")?];
        let [prefill, decode] = sides;
        let of_device = |rate: f64, side: &Side| rate / side.devices as f64;
        Some(Self {
            prefill_per_decode: of_device(all[1], decode) / of_device(all[0], prefill),
            of_prefill_replica: all[0] / prefill.replicas as f64,
            of_decode_replica: all[1] / decode.replicas as f64,
        })
    }
}

impl Tokens {
    /// As many sequences write as the pool holds beside those that arrive.
    fn of(request: &PlanRequest, side: &Side, handing: f64, question: &Disaggregation) -> Option<Self> {
        let (work, rates) = (request.work()?, request.device()?.rates()?);
        let lengths = [question.prompt, question.prompt.saturating_add(question.output)];
        let step = |sequences: u64| work.decoding(&side.stages, side.parallel, rates, lengths, sequences);
        let steps = (question.output - 1) as f64;
        let fits = |writing: u64| {
            let arriving = writing as f64 / (steps * step(writing.max(1)).seconds) * handing;
            writing as f64 + arriving <= side.sequences as f64
        };
        let writing = last(side.sequences, |writing| writing == 0 || fits(writing)).max(1);
        let step = step(writing);
        (step.seconds > 0.0).then_some(Self {
            writing,
            step: step.seconds,
            bound_by: step.bound_by,
            source: rates.source,
        })
    }
}
