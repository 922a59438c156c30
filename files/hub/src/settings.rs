//! Where the hub is, by whose word, and who asks.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use cacheplan_files::{Limit, Source};
use ureq::http::Uri;
use ureq::tls::RootCerts;

use crate::HubError;
use crate::{cache, certificates};

/// What the environment says, in the words of `huggingface_hub`.
pub(crate) struct Settings {
    pub(crate) endpoint: Uri,
    pub(crate) token: Option<Token>,
    /// Who says that the hub is the hub.
    pub(crate) roots: RootCerts,
}

/// What says who asks. It has no `Debug`, so that nothing shows it by accident.
pub(crate) struct Token(String);

impl Token {
    /// As a header has it.
    pub(crate) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl Settings {
    pub(crate) fn read(variable: &impl Fn(&str) -> Option<OsString>, model: &str) -> Result<Self, HubError> {
        let text = |name: &str| variable(name).map(|value| value.to_string_lossy().trim().to_owned());
        let is_on = |name: &str| {
            text(name).is_some_and(|value| matches!(&*value.to_ascii_uppercase(), "1" | "ON" | "YES" | "TRUE"))
        };
        for (name, why) in [
            ("HF_HUB_OFFLINE", "HF_HUB_OFFLINE forbids to fetch it"),
            ("TRANSFORMERS_OFFLINE", "TRANSFORMERS_OFFLINE forbids to fetch it"),
        ] {
            if is_on(name) {
                return Err(HubError::Offline { name: model.to_owned(), why });
            }
        }
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".to_owned());
        let token = if is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN") { None } else { token(variable)? };
        Ok(Self { endpoint: address(&endpoint)?, token, roots: certificates::believed(variable)? })
    }
}

/// `HF_ENDPOINT`: https, or http to this machine.
fn address(text: &str) -> Result<Uri, HubError> {
    let refused = || {
        let shown = text.split(['?', '#']).next().unwrap_or_default();
        // What stands before an `@` may be a password.
        let shown = shown.rsplit_once('@').map_or(shown, |(_, host)| host);
        HubError::Insecure { from: "HF_ENDPOINT".to_owned(), found: shown.to_owned() }
    };
    let uri: Uri = text.trim_end_matches('/').parse().map_err(|_| refused())?;
    let is_plain = uri.query().is_none() && uri.authority().is_some_and(|authority| !authority.as_str().contains('@'));
    let is_safe = uri.scheme_str() == Some("https") || is_on_this_machine(&uri);
    if is_plain && is_safe { Ok(uri) } else { Err(refused()) }
}

/// Whether it is http to this machine, of which nobody listens in.
pub(crate) fn is_on_this_machine(uri: &Uri) -> bool {
    let is_loopback = |host: &str| {
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    };
    uri.scheme_str() == Some("http") && uri.host().is_some_and(is_loopback)
}

fn token(variable: &impl Fn(&str) -> Option<OsString>) -> Result<Option<Token>, HubError> {
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"] {
        if let Some(value) = variable(name) {
            return checked(&value.to_string_lossy(), name.to_owned());
        }
    }
    let Some(file) =
        variable("HF_TOKEN_PATH").map(PathBuf::from).or_else(|| Some(cache::home(variable)?.join("token")))
    else {
        return Ok(None);
    };
    let (folder, name) = (file.parent().unwrap_or(Path::new("")), file.file_name().and_then(|name| name.to_str()));
    match name.map(|name| Source::beside(folder, name)).transpose()?.flatten() {
        Some(found) => checked(&found.text(Limit::TOML)?, file.display().to_string()),
        None => Ok(None),
    }
}

fn checked(text: &str, from: String) -> Result<Option<Token>, HubError> {
    let text = text.trim();
    match text.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(Some(Token(text.to_owned())).filter(|_| !text.is_empty())),
        false => Err(HubError::Token { from }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("https://huggingface.co", true)]
    #[case("https://mirror.example/hf/", true)]
    #[case("http://127.0.0.1:8080", true)]
    #[case("http://localhost", true)]
    #[case("http://[::1]:1", true)]
    #[case("http://huggingface.co", false)]
    #[case("http://127.0.0.1.example", false)]
    #[case("https://user:secret@mirror.example", false)]
    #[case("https://mirror.example?token=secret", false)]
    #[case("file:///etc/passwd", false)]
    #[case("mirror", false)]
    #[case("", false)]
    fn an_endpoint_is_https_or_this_machine(#[case] text: &str, #[case] expected: bool) {
        let found = address(text);
        assert_eq!(found.is_ok(), expected);
        assert!(!found.is_err_and(|error| error.to_string().contains("secret")));
    }

    #[rstest]
    #[case(&[("HF_TOKEN", "hf_a\n")], Ok(Some("Bearer hf_a")))]
    #[case(&[("HUGGING_FACE_HUB_TOKEN", "hf_b")], Ok(Some("Bearer hf_b")))]
    #[case(&[("HF_TOKEN", "hf_a\r\nX: y")], Err(()))]
    #[case(&[("HF_TOKEN_PATH", "/nowhere/token")], Ok(None))]
    #[case(&[("HF_TOKEN", "hf_a"), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")], Ok(None))]
    #[case(&[("HF_HUB_OFFLINE", "yes")], Err(()))]
    #[case(&[("HF_HUB_OFFLINE", "0")], Ok(None))]
    #[case(&[("HF_ENDPOINT", "http://example.com")], Err(()))]
    #[case(&[("SSL_CERT_FILE", "/nowhere/certificates.pem")], Err(()))]
    #[case(&[("SSL_CERT_FILE", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))], Err(()))]
    #[case(&[("SSL_CERT_FILE", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/localhost.pem"))], Ok(None))]
    fn settings_are_those_of_the_hubs_own_tools(
        #[case] variables: &[(&str, &str)],
        #[case] expected: Result<Option<&str>, ()>,
    ) {
        let variable = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.into());
        let found = Settings::read(&variable, "a/b");
        let bearer = found.map(|settings| settings.token.map(|token| token.bearer()));
        assert_eq!(bearer.as_ref().map(Option::as_deref).map_err(|_| ()), expected);
        assert!(!bearer.is_err_and(|error| error.to_string().contains("hf_a")));
    }
}
