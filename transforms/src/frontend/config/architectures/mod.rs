//! The built-in descriptions.

/// The first line of each lists its model types, so that only the one needed is parsed.
pub(super) const BUILT_IN: &[&str] = &[
    include_str!("deepseek.toml"),
    include_str!("llama.toml"),
    include_str!("mamba2.toml"),
    include_str!("mamba_ssm.toml"),
    include_str!("nemotron_h.toml"),
];
