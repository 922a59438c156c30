//! What passes from prefill to decode, and what that admits, as text.

use super::columns::wrap;
use crate::disaggregation::{DisaggregationAnswer, Handover, Side};
use crate::engines::TransferFlags;
use crate::size::ByteSize;

impl DisaggregationAnswer {
    /// The answer as text, at most 80 columns wide but for what engines are told.
    pub fn table(&self) -> String {
        lines(self).iter().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

fn lines(answer: &DisaggregationAnswer) -> Vec<String> {
    let DisaggregationAnswer { prompt, output, prefill, decode, handover, .. } = answer;
    let mut lines = Vec::new();
    if let Some(plan) = prefill.stages.first() {
        lines.push(format!("MODEL     {}", plan.model.title()));
    }
    lines.extend(side("PREFILL", prefill, "prompts"));
    lines.extend(side("DECODE", decode, "sequences"));
    lines.push(format!("REQUEST   {prompt} tokens of prompt, {output} written, the first with the prompt"));
    lines.push(String::new());
    lines.extend(handed(handover));
    lines.push(String::new());
    lines.push("ADMITTED AT MOST      requests/s".to_owned());
    for ceiling in &answer.ceilings {
        let mark = if answer.capped_by == Some(ceiling.name) { "  <- caps" } else { "" };
        lines.push(format!("  {:20} {:>9.2}{mark}", ceiling.name, ceiling.per_second));
        lines.extend(wrapped(&ceiling.reason, 6));
    }
    lines.push(format!(
        "  a request is on the link for {:.2} ms where {:.1} GB/s are all its own",
        answer.handover_seconds * 1e3,
        answer.link / 1e9
    ));
    match &answer.balance {
        Some(balance) => {
            lines.push(String::new());
            lines.push(format!(
                "BALANCE   {:.2} prefill devices for each decode device, in these layouts",
                balance.prefill_per_decode
            ));
            let (of_prefill, of_decode) = (balance.of_prefill_replica, balance.of_decode_replica);
            lines.push(format!("          a replica: {of_prefill:.2} requests/s computed, {of_decode:.2} written"));
        }
        None => lines
            .extend(wrapped("no rates of the devices, or no weights, are known, so that only the link is bounded", 2)),
    }
    answer.engines.iter().for_each(|flags| lines.extend(words(flags)));
    lines
}

fn side(name: &str, side: &Side, what: &str) -> Vec<String> {
    let Side { devices, device, parallel, replicas, sequences, capped_by, engine, .. } = side;
    let sizes = parallel.sizes().into_iter().filter(|(_, size)| *size > 1);
    let sizes: Vec<String> = sizes.map(|(name, size)| format!(" {name} {size}")).collect();
    let device = if device.is_empty() { String::new() } else { format!(" {device}") };
    let by = engine.as_ref().map(|engine| format!(" by {engine}")).unwrap_or_default();
    let each = if *replicas == 1 { "holds".to_owned() } else { format!("in {replicas} replicas, each holds") };
    let text =
        format!("{devices} x{device}{}: {each} {sequences} {what} at once{by}, capped by {capped_by}", sizes.concat());
    let mut lines = wrapped(&text, 10);
    if let Some(first) = lines.first_mut() {
        *first = format!("{name:10}{}", first.trim_start());
    }
    lines
}

fn handed(handover: &Handover) -> Vec<String> {
    let mut lines = vec![format!("{:30} caches  tokens {:>12} {:>12}", "HANDED OVER", "once", "received")];
    for part in &handover.parts {
        let tokens = part.tokens.map_or_else(|| "-".to_owned(), |tokens| tokens.to_string());
        let (once, received) = (ByteSize(part.bytes).to_string(), ByteSize(part.received).to_string());
        lines.push(format!("  {:28} {:>6} {tokens:>7} {once:>12} {received:>12}", part.kind, part.caches));
    }
    let (once, received) = (ByteSize(handover.bytes).to_string(), ByteSize(handover.received).to_string());
    lines.push(format!("  {:28} {:6} {:7} {once:>12} {received:>12}", "in all", "", ""));
    let [from, to] = handover.ranks;
    let shares = match (from, to) {
        (1, 1) => "whole blocks".to_owned(),
        (from, to) if from == to => format!("tp {from} on both sides: a rank receives what one rank holds"),
        (from, to) if from < to => format!("tp {from} to {to}: {} ranks share the heads of each that sends", to / from),
        (from, to) => format!("tp {from} to {to}: a rank gathers the heads of {}", from / to),
    };
    let (sent, arrives) = (ByteSize(handover.sent_by_device), ByteSize(handover.received_by_device));
    lines.push(format!("  {shares}"));
    lines.push(format!("  the busiest device sends {sent}, and receives {arrives}"));
    if handover.received > handover.bytes {
        lines.extend(wrapped(
            "received is more where blocks are not full, or ranks keep copies of one head or latent",
            2,
        ));
    }
    if let Some([from, to]) = handover.turned {
        let said = format!(
            "blocks are {from} on one side and {to} on the other: what arrives is read and written once more to be turned, as vLLM does behind `enable_permute_local_kv` from HND to NHD, and SGLang not"
        );
        lines.extend(wrapped(&said, 2));
    }
    lines
}

fn words(flags: &TransferFlags) -> Vec<String> {
    let mut lines = vec![String::new(), format!("# {} {}", flags.engine, flags.read_in)];
    for text in &flags.refuses {
        lines.extend(wrapped(&format!("refuses: {text}"), 0).into_iter().map(|line| format!("# {line}")));
    }
    let of = |name: &str, own: &[String]| {
        let mut lines = vec![format!("# {name}")];
        lines.extend_from_slice(own);
        lines
    };
    lines.extend(of("prefill", &flags.prefill));
    lines.extend(of("decode", &flags.decode));
    for text in &flags.notes {
        lines.extend(wrapped(text, 0).into_iter().map(|line| format!("# {line}")));
    }
    lines
}

/// `text` in lines of at most 80 columns.
fn wrapped(text: &str, indent: usize) -> Vec<String> {
    wrap(text, indent).lines().map(str::to_owned).collect()
}
