//! Units of systemd, as scripts that say the same, line by line.

/// Whether a text is a unit: its first line that says anything begins one of its sections.
pub(super) fn is(text: &str) -> bool {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', ';']));
    lines.next().is_some_and(|line| matches!(line, "[Unit]" | "[Service]" | "[Install]"))
}

/// The script: what it starts, behind the variables that it sets; all else is left out, and lines keep their numbers.
pub(super) fn script(text: &str) -> String {
    let mut script = String::new();
    let mut goes_on = false;
    for line in text.lines() {
        let (key, value) = line.trim_start().split_once('=').unwrap_or_default();
        let kept = match key.trim_end() {
            _ if goes_on => line.to_owned(),
            // Its prefixes say how failures and users are taken.
            "ExecStart" => value.trim_start().trim_start_matches(['-', '@', ':', '+', '!']).to_owned(),
            "Environment" => format!("export {value}"),
            _ => String::new(),
        };
        goes_on = !kept.is_empty() && kept.trim_end().ends_with('\\');
        script += kept.trim_end();
        script.push('\n');
    }
    script
}

#[cfg(test)]
mod tests {
    use crate::manifest;

    const UNIT: &str = "# of ours\n[Unit]\nDescription=vllm serve nothing\n[Service]\nEnvironment=\"HF_HOME=/data\" A=1\nExecStart=-/opt/venv/bin/vllm serve m --max-model-len \\\n  ${LENGTH}\nRestart=always\n";

    #[test]
    fn a_unit_starts_what_it_says_in_its_environment() {
        let text = UNIT.replace("${LENGTH}", "8192");
        let found = manifest::read("vllm.service", text.as_bytes()).unwrap();
        assert_eq!(found.len(), 1);
        let expected = "A=1 HF_HOME=/data /opt/venv/bin/vllm serve m --max-model-len 8192";
        assert_eq!((found[0].to_string().as_str(), found[0].place.as_str()), (expected, "vllm.service:6"));
        let error = manifest::read("vllm.service", UNIT.as_bytes()).unwrap_err().to_string();
        assert!(error.starts_with("vllm.service:6") && error.contains("LENGTH"), "{error}");
    }
}
