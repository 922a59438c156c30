//! What engines are told so that one of them computes prompts and another writes tokens, and what they refuse.
//!
//! Each name and refusal was read where its `read_in` says.

use cacheplan_handlers::{DecayKind, Kind, Recurrence, ResourceHandler};
use serde::Serialize;

use super::registry::Engine;
use crate::parallel::Parallel;

/// What of a handover engines look at; pairs are of prefill and decode.
#[derive(Clone, Debug)]
pub struct Handing {
    /// How each side divides the model.
    pub layouts: [Parallel; 2],
    /// Tokens of a block; 0 where nothing is paged.
    pub blocks: [u64; 2],
    /// The model's caches, whole.
    pub handlers: Vec<ResourceHandler>,
    /// Tokens of a prompt.
    pub prompt: u64,
}

/// The words of one engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TransferFlags {
    /// Which engine.
    pub engine: &'static str,
    /// The version, and the files of it, in which the words were read.
    pub read_in: &'static str,
    /// Flags, keys or variables of what computes prompts, a line each.
    pub prefill: Vec<String>,
    /// The same of what writes tokens.
    pub decode: Vec<String>,
    /// Why it does not start so, or does not hand over; none where nothing that was read forbids it.
    pub refuses: Vec<String>,
    /// What it does otherwise than it may be thought.
    pub notes: Vec<String>,
}

/// What a model keeps, as far as engines hand it over differently.
struct Keeps {
    windows: bool,
    states: bool,
    latents: bool,
    /// Convolutions without a state beside them.
    short_convolutions: bool,
    /// Linear attention without a convolution of its own kind.
    lightning: bool,
    /// Heads of keys and values, where all layers have as many.
    heads: Option<u64>,
    uneven_heads: bool,
}

impl Handing {
    /// Says the handover to an engine, or to all that have words for it.
    #[must_use]
    pub fn flags(&self, engine: Option<Engine>) -> Vec<TransferFlags> {
        let keeps = self.keeps();
        let all = [
            ("vllm", self.vllm(&keeps)),
            ("sglang", self.sglang(&keeps)),
            ("tensorrt-llm", self.tensorrt_llm(&keeps)),
            ("vllm", self.dynamo(&keeps)),
        ];
        let wanted = |name: &str| engine.is_none_or(|engine| engine.name() == name);
        all.into_iter().filter(|(name, _)| wanted(name)).map(|(_, flags)| flags).collect()
    }

    fn keeps(&self) -> Keeps {
        let has = |is: &dyn Fn(&ResourceHandler) -> bool| self.handlers.iter().any(is);
        let of_kind = |kind: Kind| has(&|handler| *handler.kind() == kind);
        let windowed = |handler: &ResourceHandler| {
            matches!(handler.growth(), cacheplan_handlers::Growth::Paged { window: Some(_), .. })
        };
        let lightning = |handler: &ResourceHandler| {
            let fixed = |recurrence| {
                matches!(recurrence, Recurrence::LinearAttention { delta_rule: false, decay: DecayKind::Fixed, .. })
            };
            handler.recurrence().is_some_and(fixed)
        };
        let heads: Vec<u64> = self
            .handlers
            .iter()
            .filter(|handler| *handler.kind() == Kind::KvPaged)
            .filter_map(|handler| handler.dim("num_kv_heads"))
            .collect();
        let first = heads.first().copied();
        let uneven_heads = heads.iter().any(|heads| Some(*heads) != first);
        let (states, convolutions) = (of_kind(Kind::Ssm), of_kind(Kind::CausalConv));
        Keeps {
            windows: has(&windowed),
            states: states || convolutions || of_kind(Kind::State),
            latents: of_kind(Kind::MlaPaged),
            short_convolutions: convolutions && !states,
            lightning: has(&lightning),
            heads: first.filter(|_| !uneven_heads),
            uneven_heads,
        }
    }

    fn sizes(&self, side: usize, names: [&str; 2]) -> Vec<String> {
        let Parallel { tp, pp, .. } = self.layouts[side];
        let flags = names.into_iter().zip([tp, pp]).filter(|(_, size)| *size > 1);
        flags.map(|(name, size)| format!("{name} {size}")).collect()
    }

    fn vllm(&self, keeps: &Keeps) -> TransferFlags {
        let side = |side: usize, role: &str| {
            let mut lines = Vec::new();
            if keeps.states {
                lines.push("VLLM_SSM_CONV_STATE_LAYOUT=DS".to_owned());
            }
            lines.extend(self.sizes(side, ["--tensor-parallel-size", "--pipeline-parallel-size"]));
            lines.push(connector(role));
            lines
        };
        let [prefill, decode] = self.layouts;
        let mut refuses = Vec::new();
        if keeps.short_convolutions || keeps.lightning {
            let what = if keeps.lightning { "lightning attention" } else { "short convolutions" };
            refuses.push(format!("NixlConnector moves states of Mamba-1, Mamba-2 and gated delta nets, not {what}"));
        }
        if keeps.states && (prefill.pp > 1 || decode.pp > 1) {
            refuses.push("NixlConnector takes no pipeline stages with states".to_owned());
        } else if keeps.windows && prefill.pp > 1 {
            refuses.push(
                "NixlConnector takes no pipeline stages with windows; NixlPushConnector does of prefill".to_owned(),
            );
        }
        if !keeps.states && decode.pp > 1 {
            refuses.push("NixlConnector takes no pipeline stages where tokens are written".to_owned());
        }
        let copied = keeps.heads.is_some_and(|heads| u64::from(prefill.tp) > heads);
        if copied && prefill.tp > decode.tp && !keeps.latents && !keeps.states {
            refuses.push(format!("tp {} of prefill copies heads, which a smaller tp does not gather", prefill.tp));
        }
        for (role, layout) in [("prefill", prefill), ("decode", decode)] {
            if layout.dcp > 1 && (!keeps.latents || layout.dcp != layout.tp) {
                refuses.push(format!("dcp {} of {role}: 1 or tp, and of latents alone", layout.dcp));
            }
        }
        if let [sent, kept] = self.blocks
            && sent > 0
            && !kept.is_multiple_of(sent)
        {
            refuses.push(format!("blocks of {kept} tokens are no whole number of those of {sent}"));
        }
        let mut notes = vec!["one version, attention backend, cache dtype and speculation on both sides".to_owned()];
        if keeps.windows {
            notes.push("sends up to a block more of each window".to_owned());
        }
        let read_in = "0.33.0: kv_connector/v1/nixl, ssm_conv_transfer_utils.py";
        let lines = [side(0, "kv_producer"), side(1, "kv_consumer")];
        TransferFlags::of("vLLM", read_in, lines, refuses, notes)
    }

    fn sglang(&self, keeps: &Keeps) -> TransferFlags {
        let page = self.blocks[1];
        let side = |side: usize, mode: &str| {
            let mut lines = vec![format!("--disaggregation-mode {mode}")];
            lines.push("--disaggregation-transfer-backend nixl".to_owned());
            lines.extend(self.sizes(side, ["--tp-size", "--pp-size"]));
            if page > 0 {
                lines.push(format!("--page-size {}", self.blocks[side]));
            }
            lines
        };
        let [prefill, decode] = self.layouts;
        let mut refuses = Vec::new();
        if self.blocks[0] != page {
            refuses
                .push(format!("blocks of {} and {page} tokens: one page size for both is asked for", self.blocks[0]));
        }
        if keeps.windows && prefill.tp != decode.tp && !keeps.latents && prefill.pp > 1 {
            refuses.push("pipeline stages of prefill with windows and another tp".to_owned());
        }
        if decode.cp > 1 {
            refuses.push("context parallel ranks where tokens are written".to_owned());
        }
        if decode.dcp > 1 && !keeps.latents {
            refuses.push("dcp of decode is for latents".to_owned());
        }
        let mut notes = vec!["mooncake is the default; --kv-cache-dtype must be one for both".to_owned()];
        if prefill.tp != decode.tp && !keeps.latents {
            notes.push("warns that speed is not guaranteed where tp differs".to_owned());
        }
        notes.push("decode keeps no radix cache unless --disaggregation-decode-enable-radix-cache".to_owned());
        let read_in = "0.5.23: disaggregation, arg_groups/pd_disaggregation_hook.py";
        TransferFlags::of("SGLang", read_in, [side(0, "prefill"), side(1, "decode")], refuses, notes)
    }

    fn tensorrt_llm(&self, keeps: &Keeps) -> TransferFlags {
        let side = |side: usize| {
            let mut lines = if side == 0 { vec!["disable_overlap_scheduler: true".to_owned()] } else { Vec::new() };
            lines.push("cache_transceiver_config.backend: NIXL".to_owned());
            lines.push(format!("cache_transceiver_config.max_tokens_in_buffer: {}", self.prompt));
            lines.extend(self.sizes(side, ["tensor_parallel_size:", "pipeline_parallel_size:"]));
            lines
        };
        let mut refuses = Vec::new();
        if keeps.uneven_heads {
            refuses.push("layers with other numbers of key heads".to_owned());
        }
        if self.blocks[0] != self.blocks[1] {
            refuses.push(format!("blocks of {} and {} tokens", self.blocks[0], self.blocks[1]));
        }
        let mut notes = vec!["no release of these sources was run".to_owned()];
        if keeps.states {
            notes.push("states and convolutions pass in one dtype, with all layers on both sides".to_owned());
        }
        let read_in = "public sources: disagg-serving.md, cacheFormatter.cpp, rnnCacheRouting.cpp";
        TransferFlags::of("TensorRT-LLM", read_in, [side(0), side(1)], refuses, notes)
    }

    fn dynamo(&self, keeps: &Keeps) -> TransferFlags {
        let own = self.vllm(keeps);
        let worker = |mode: &str, lines: Vec<String>| {
            let (variables, flags): (Vec<String>, Vec<String>) =
                lines.into_iter().partition(|line| !line.starts_with("--"));
            let start = format!("python3 -m dynamo.vllm --disaggregation-mode {mode}");
            variables.into_iter().chain([start]).chain(flags).collect()
        };
        let notes = vec!["its workers hand over as their engine does; older ones say --is-prefill-worker".to_owned()];
        let read_in = "public sources: dynamo.vllm";
        let lines = [worker("prefill", own.prefill), worker("decode", own.decode)];
        TransferFlags::of("Dynamo", read_in, lines, own.refuses, notes)
    }
}

fn connector(role: &str) -> String {
    format!("--kv-transfer-config '{{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"{role}\"}}'")
}

impl TransferFlags {
    fn of(
        engine: &'static str,
        read_in: &'static str,
        [prefill, decode]: [Vec<String>; 2],
        refuses: Vec<String>,
        notes: Vec<String>,
    ) -> Self {
        Self { engine, read_in, prefill, decode, refuses, notes }
    }
}
