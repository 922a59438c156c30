//! How much is read of each kind of file. Far above what real ones take, far below what would harm.

/// A limit for one kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What is read, in the words of an error.
    pub what: &'static str,
    /// The most bytes of it: of the file, or of the header of a format whose rest is not read.
    pub bytes: u64,
    /// Bytes that each of its JSON values is charged with, see [`Limit::MEMORY`].
    pub per_value: u64,
}

impl Limit {
    /// What the text of a JSON file and the values that are kept of it may take together.
    pub const MEMORY: u64 = 56 << 20;

    /// A model's config, and what calibration wrote beside it. The largest ones, with a list of every tensor, are 2 MiB.
    pub const CONFIG: Self = Self { what: "a config", bytes: 8 << 20, per_value: 256 };
    /// A budget, an architecture description: TOML takes some 500 bytes for each key.
    pub const TOML: Self = Self { what: "a TOML file", bytes: 128 << 10, per_value: 0 };
    /// A histogram of lengths. More rows than a thousand make no better plan.
    pub const HISTOGRAM: Self = Self { what: "a histogram", bytes: 1 << 20, per_value: 0 };
    /// What starts an engine: a script, a manifest, values of a chart.
    pub const MANIFEST: Self = Self { what: "a manifest", bytes: 1 << 20, per_value: 0 };
    /// A plan; that of a model of 10,000 layers takes 9 MiB.
    pub const PLAN: Self = Self { what: "a plan", bytes: 16 << 20, per_value: 64 };
    /// What a run measured: a profile, statistics of its pools.
    pub const MEASURED: Self = Self { what: "a measurement", bytes: 8 << 20, per_value: 64 };
    /// The header of a safetensors file; those of the largest models are a few MiB.
    pub const SAFETENSORS: Self = Self { what: "a safetensors header", bytes: 16 << 20, per_value: 24 };
    /// The index of the shards of a model. Only their names are kept; a model of 140,000 tensors has 13 MiB.
    pub const INDEX: Self = Self { what: "an index of shards", bytes: 32 << 20, per_value: 0 };
    /// The header of a GGUF file, vocabulary included.
    pub const GGUF: Self = Self { what: "a GGUF header", bytes: 64 << 20, per_value: 0 };
    /// Names, shapes and attributes of an ONNX graph; its weights are jumped over.
    pub const ONNX: Self = Self { what: "an ONNX graph", bytes: 32 << 20, per_value: 0 };
    /// An ONNX graph with the weights in it; its format holds no more.
    pub const ONNX_WITH_WEIGHTS: Self = Self { what: "an ONNX graph with its weights", bytes: 2 << 30, per_value: 0 };
    /// The graph of a program of torch.export, or the directory of its archive; weights are not read. That of a model of
    /// two layers has 200 KiB.
    pub const PT2: Self = Self { what: "an exported program", bytes: 32 << 20, per_value: 24 };
    /// A trace of requests; the requests that are kept of it may take as much. Mooncake's own have 12 MiB.
    pub const TRACE: Self = Self { what: "a trace", bytes: 32 << 20, per_value: 0 };
    /// The log of an engine.
    pub const LOG: Self = Self { what: "a log", bytes: 32 << 20, per_value: 0 };
    /// A tokenizer; Gemma's has 33 MiB.
    pub const TOKENIZER: Self = Self { what: "a tokenizer", bytes: 48 << 20, per_value: 0 };
    /// The text of a prompt.
    pub const PROMPT: Self = Self { what: "a prompt", bytes: 8 << 20, per_value: 0 };
    /// The template of a model's conversations; the longest known ones have 60 KiB.
    pub const TEMPLATE: Self = Self { what: "a chat template", bytes: 256 << 10, per_value: 0 };
    /// Requests, one on each line; what is kept of them may take as much. Token ids of a million tokens fit a line.
    pub const REQUESTS: Self = Self { what: "a list of requests", bytes: 32 << 20, per_value: 48 };
    /// What the hub says of a model: its commit and the names of its files.
    pub const LISTING: Self = Self { what: "a list of a model's files", bytes: 8 << 20, per_value: 64 };
    /// The beginning of a file of the hub's, as far as it was read; a longer one is read again each time.
    pub const KEPT_HEADER: Self = Self { what: "a kept header", bytes: 48 << 20, per_value: 0 };
}
