//! What engines and the caches beside them are told of tiers below the device.
//!
//! Each name, unit and meaning was read where its `read_in` says. What takes no value of ours is said in a note instead.

use serde::Serialize;

use crate::parallel::Parallel;

/// Tiers below the device, in bytes of one rank.
#[derive(Clone, Copy, Debug)]
pub struct LowerTiers {
    /// Host memory.
    pub host: u64,
    /// The disk.
    pub disk: u64,
    /// States in host memory.
    pub host_states: u64,
    /// Sequences that run at a time.
    pub running: u64,
    /// Tokens between two states that a prompt leaves.
    pub distance: u64,
    /// Bytes of states over those of keys on the device; `None` without states.
    pub device_ratio: Option<f64>,
    /// The same below the device.
    pub lower_ratio: Option<f64>,
    /// Over how many ranks the model is divided.
    pub parallel: Parallel,
}

/// The words of one engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TierFlags {
    /// Which engine.
    pub engine: &'static str,
    /// The version, and the file of it, in which the words were read.
    pub read_in: &'static str,
    /// Flags, keys or variables, a line each.
    pub lines: Vec<String>,
    /// What they cannot say.
    pub notes: Vec<String>,
}

const GIB: f64 = (1_u64 << 30) as f64;

impl LowerTiers {
    /// Says the tiers to every engine that has words for them. Empty without a tier.
    #[must_use]
    pub fn flags(&self) -> Vec<TierFlags> {
        if self.host == 0 && self.disk == 0 {
            return Vec::new();
        }
        vec![self.sglang(), self.vllm(), self.tensorrt_llm(), self.lmcache(), self.kvbm(), self.llama_cpp()]
    }

    fn sglang(&self) -> TierFlags {
        let gigabytes = self.host / 1_000_000_000;
        let mut lines = Vec::new();
        let mut notes = Vec::new();
        if gigabytes > 0 {
            lines.push("--enable-hierarchical-cache".to_owned());
            lines.push(format!("--hicache-size {gigabytes}"));
            notes.push("hicache-size is in whole 10^9 bytes of each rank".to_owned());
        } else {
            notes.push("hicache-size is in whole 10^9 bytes, of which host memory here has none".to_owned());
        }
        if let Some(ratio) = self.device_ratio {
            lines.push(format!("--mamba-full-memory-ratio {ratio:.3}"));
            let said = "hicache-size is divided as the device is; it has no split of its own";
            let better = self.lower_ratio.filter(|lower| (lower - ratio).abs() > 0.1 * ratio.max(*lower));
            let better = better.map(|lower| format!(" (below the device {lower:.3} is best)")).unwrap_or_default();
            notes.push(format!("{said}{better}"));
        }
        if self.disk > 0 && gigabytes > 0 {
            lines.push("--hicache-storage-backend file".to_owned());
            lines.push(format!("SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE={}", self.disk));
            lines.push("SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=DIRECTORY".to_owned());
        }
        let read_in = "0.5.23: arg_groups/fields/memory.py, hybrid_pool_assembler.py, lru_file_evictor.py";
        TierFlags { engine: "SGLang", read_in, lines, notes }
    }

    fn vllm(&self) -> TierFlags {
        let Parallel { tp, pp, .. } = self.parallel;
        let ranks = u64::from(tp) * u64::from(pp);
        let bytes = self.host.saturating_mul(ranks);
        let mut notes =
            vec![format!("over all ranks, of which there are {ranks}; one size for the blocks of all groups")];
        let lines = if self.host == 0 {
            notes.push("its disk lies below host memory, without which there is none".to_owned());
            Vec::new()
        } else if self.disk == 0 {
            let size = format!("--kv-offloading-size {}", bytes as f64 / GIB);
            vec![size, "--kv-offloading-backend native".to_owned()]
        } else {
            notes.push("the tier `fs` takes no size: the file system has to limit it".to_owned());
            let tiers = r#""secondary_tiers":[{"type":"fs","root_dir":"DIRECTORY"}]"#;
            let extra = format!(r#"{{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":{bytes},{tiers}}}"#);
            let connector = r#""kv_connector":"OffloadingConnector","kv_role":"kv_both""#;
            vec![format!("--kv-transfer-config '{{{connector},\"kv_connector_extra_config\":{extra}}}'")]
        };
        let read_in = "0.33.0: config/cache.py, config/vllm.py, v1/kv_offload/tiering";
        TierFlags { engine: "vLLM", read_in, lines, notes }
    }

    fn tensorrt_llm(&self) -> TierFlags {
        let lines = (self.host > 0).then(|| format!("kv_cache_config.host_cache_size: {}", self.host));
        let mut notes = vec!["bytes of each rank".to_owned()];
        if self.disk > 0 {
            let unread = "its disk's key, disk_cache_size, was seen only in a test of its sources, so it is left out";
            notes.push(unread.to_owned());
        }
        let read_in = "1.3.0rc25: KvCacheConfig";
        TierFlags { engine: "TensorRT-LLM", read_in, lines: lines.into_iter().collect(), notes }
    }

    fn lmcache(&self) -> TierFlags {
        let gib = |bytes: u64| bytes as f64 / GIB;
        let mut lines = Vec::new();
        if self.host > 0 {
            lines.push("LMCACHE_LOCAL_CPU=True".to_owned());
            lines.push(format!("LMCACHE_MAX_LOCAL_CPU_SIZE={}", gib(self.host)));
        }
        if self.disk > 0 {
            lines.push("LMCACHE_LOCAL_DISK=file://DIRECTORY/".to_owned());
            lines.push(format!("LMCACHE_MAX_LOCAL_DISK_SIZE={}", gib(self.disk)));
        }
        let mut notes = vec!["GiB; as YAML the same names in small letters, without the prefix".to_owned()];
        if self.device_ratio.is_some() {
            notes.push("one size for all that is stored; it has no split for states".to_owned());
        }
        TierFlags { engine: "LMCache", read_in: "0.5.6: v1/config.py, v1/storage_backend", lines, notes }
    }

    fn kvbm(&self) -> TierFlags {
        let mut lines = Vec::new();
        if self.device_ratio.is_none() {
            let sizes = [("DYN_KVBM_CPU_CACHE_GB", self.host), ("DYN_KVBM_DISK_CACHE_GB", self.disk)];
            let stated = sizes.iter().filter(|(_, bytes)| *bytes >= 1_000_000_000);
            lines.extend(stated.map(|(name, bytes)| format!("{name}={}", bytes / 1_000_000_000)));
        }
        let notes = match self.device_ratio {
            Some(_) => "it knows blocks of one kind; with states nothing is said to it".to_owned(),
            None => "in GB; whether of 10^9 or 2^30 bytes was not read, so the smaller is taken".to_owned(),
        };
        TierFlags {
            engine: "KVBM",
            read_in: "Dynamo's public sources: the configuration of kvbm",
            lines,
            notes: vec![notes],
        }
    }

    fn llama_cpp(&self) -> TierFlags {
        let mut lines = vec![format!("--cache-ram {}", self.host >> 20)];
        let mut notes = vec!["MiB of the process; 0 turns it off".to_owned()];
        if self.device_ratio.is_some() {
            let each = (self.host_states / self.running.max(1)).clamp(1, 1 << 16);
            lines.push(format!("--ctx-checkpoints {each}"));
            lines.push(format!("--checkpoint-min-step {}", self.distance));
            notes.push("checkpoints of each slot, of which one runs at a time".to_owned());
        }
        if self.disk > 0 {
            notes.push("it keeps no prefixes on a disk by itself".to_owned());
        }
        TierFlags { engine: "llama.cpp", read_in: "b11549: common/arg.cpp", lines, notes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tiers(host: u64, disk: u64, states: bool) -> LowerTiers {
        let ratio = |ratio: f64| states.then_some(ratio);
        let parallel = Parallel { tp: 2, ..Parallel::default() };
        let (host_states, running, distance) = (640, 16, 4096);
        let (device_ratio, lower_ratio) = (ratio(0.25), ratio(0.5));
        LowerTiers { host, disk, host_states, running, distance, device_ratio, lower_ratio, parallel }
    }

    fn lines(tiers: LowerTiers) -> String {
        let flags = tiers.flags().into_iter().map(|flags| format!("{}: {}", flags.engine, flags.lines.join(" ")));
        flags.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn every_engine_is_told_in_its_own_unit() {
        insta::assert_snapshot!(lines(tiers(64 << 30, 0, false)), @r"
        SGLang: --enable-hierarchical-cache --hicache-size 68
        vLLM: --kv-offloading-size 128 --kv-offloading-backend native
        TensorRT-LLM: kv_cache_config.host_cache_size: 68719476736
        LMCache: LMCACHE_LOCAL_CPU=True LMCACHE_MAX_LOCAL_CPU_SIZE=64
        KVBM: DYN_KVBM_CPU_CACHE_GB=68
        llama.cpp: --cache-ram 65536
        ");
    }

    #[test]
    fn states_and_a_disk_are_said_where_there_are_words_for_them() {
        insta::assert_snapshot!(lines(tiers(64 << 30, 1 << 40, true)), @r#"
        SGLang: --enable-hierarchical-cache --hicache-size 68 --mamba-full-memory-ratio 0.250 --hicache-storage-backend file SGLANG_HICACHE_FILE_BACKEND_MAX_SIZE=1099511627776 SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR=DIRECTORY
        vLLM: --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":137438953472,"secondary_tiers":[{"type":"fs","root_dir":"DIRECTORY"}]}}'
        TensorRT-LLM: kv_cache_config.host_cache_size: 68719476736
        LMCache: LMCACHE_LOCAL_CPU=True LMCACHE_MAX_LOCAL_CPU_SIZE=64 LMCACHE_LOCAL_DISK=file://DIRECTORY/ LMCACHE_MAX_LOCAL_DISK_SIZE=1024
        KVBM: 
        llama.cpp: --cache-ram 65536 --ctx-checkpoints 40 --checkpoint-min-step 4096
        "#);
    }

    #[test]
    fn without_tiers_nothing_is_said() {
        assert_eq!(tiers(0, 0, true).flags(), []);
    }
}
