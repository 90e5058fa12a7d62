//! The HTTP part that the wires share: one POST of a JSON text, and its reply.
//!
//! Nothing is retried here: whoever drives the chat holds its lease, and decides from
//! [`ProviderError::is_retryable`] and [`ProviderError::retry_after`]. Nothing here quotes a header or a URL, since
//! both may hold a key.

use std::sync::OnceLock;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, ClientBuilder, Response, Url, redirect};

use super::failure::{cut_off, failure};
use super::{ProviderError, Turn};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A long answer of a reasoning model takes minutes, and unstreamed nothing comes before its end.
const TIMEOUT: Duration = Duration::from_secs(600);
/// The most bytes of a reply. The longest replies of models are some hundred kilobytes.
const MAX_REPLY: usize = 64 * 1024 * 1024;
/// The most bytes of a reply that reports an error; more is not read.
const MAX_FAILURE: usize = 64 * 1024;

/// One address that is asked.
pub(super) struct Http {
    base_url: String,
    path: &'static str,
    /// Headers that are no secret.
    fixed: &'static [(&'static str, &'static str)],
    headers: Vec<(String, String)>,
    client: Option<Client>,
    own: OnceLock<Client>,
    timeout: Duration,
}

impl Http {
    pub(super) fn new(base_url: &str, path: &'static str, fixed: &'static [(&'static str, &'static str)]) -> Self {
        Self {
            base_url: base_url.into(),
            path,
            fixed,
            headers: Vec::new(),
            client: None,
            own: OnceLock::new(),
            timeout: TIMEOUT,
        }
    }

    pub(super) fn set_base_url(&mut self, base_url: String) {
        self.base_url = base_url;
    }

    pub(super) fn set_client(&mut self, client: Client) {
        self.client = Some(client);
    }

    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Adds a header; a later one of the same name replaces it. Every value is treated as a key.
    pub(super) fn set_header(&mut self, name: &str, value: &str) {
        self.headers.retain(|(other, _)| !other.eq_ignore_ascii_case(name));
        self.headers.push((name.into(), value.into()));
    }

    /// Posts the body, reads the whole reply and has it parsed.
    pub(super) async fn ask(
        &self,
        body: String,
        parse: impl Fn(&str) -> Result<Turn, ProviderError>,
    ) -> Result<Turn, ProviderError> {
        let response = self.send(body, "application/json").await?;
        let status = response.status().as_u16();
        let text = String::from_utf8(self.read(response).await?).map_err(|e| {
            // A reply that ends inside a character has lost its end, not its encoding.
            let cut = e.utf8_error().error_len().is_none();
            let error =
                if cut { cut_off(e.as_bytes().len()) } else { ProviderError::new("the reply is no UTF-8 text") };
            error.with_status(status)
        })?;
        // An error may quote the reply, and a reply may quote a key: then it is told from the scrubbed text.
        parse(&text).or_else(|_| parse(&self.scrubbed(&text))).map_err(|e| e.with_status(status))
    }

    /// Posts the body; what comes back has a status of success and its body still to be read, whole or as a stream.
    pub(super) async fn send(&self, body: String, accept: &'static str) -> Result<Response, ProviderError> {
        let (url, headers) = (self.url()?, self.header_map(accept)?);
        let request = self.client()?.post(url).timeout(self.timeout).headers(headers).body(body);
        let response = request.send().await.map_err(|e| self.broken(e))?;
        if response.status().is_success() { Ok(response) } else { Err(self.refusal(response).await) }
    }

    async fn read(&self, mut response: Response) -> Result<Vec<u8>, ProviderError> {
        let too_large = || ProviderError::new(format!("the reply is larger than {} MiB", MAX_REPLY / (1024 * 1024)));
        if response.content_length().is_some_and(|length| length > MAX_REPLY as u64) {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| self.broken(e))? {
            if bytes.len() + chunk.len() > MAX_REPLY {
                return Err(too_large());
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    /// What a reply without a status of success means. A body that breaks off changes nothing about the status.
    async fn refusal(&self, mut response: Response) -> ProviderError {
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let mut bytes = Vec::new();
        while bytes.len() < MAX_FAILURE
            && let Ok(Some(chunk)) = response.chunk().await
        {
            bytes.extend_from_slice(&chunk);
        }
        bytes.truncate(MAX_FAILURE);
        failure(status, &headers, &self.scrubbed(&String::from_utf8_lossy(&bytes)))
    }

    fn url(&self) -> Result<Url, ProviderError> {
        let mut url = Url::parse(self.base_url.trim())
            .map_err(|e| ProviderError::new("the base URL of the provider cannot be read").caused_by(e))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(ProviderError::new("the base URL of the provider is neither http nor https"));
        }
        // Only the path is added to: Azure's `api-version` stands behind it in the query.
        let path = format!("{}{}", url.path().trim_end_matches('/'), self.path);
        url.set_path(&path);
        Ok(url)
    }

    fn header_map(&self, accept: &'static str) -> Result<HeaderMap, ProviderError> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        for (name, value) in self.fixed {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        for (name, value) in &self.headers {
            // It is not quoted, should a key have been given in its place.
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| ProviderError::new("the name of a header holds characters that it cannot"))?;
            let mut value = HeaderValue::from_str(value.trim()).map_err(|_| {
                ProviderError::new(format!("the value for the header `{name}` holds characters that a header cannot"))
            })?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        Ok(headers)
    }

    /// The app's client, or one of our own, made when it is first needed.
    fn client(&self) -> Result<&Client, ProviderError> {
        if let Some(client) = self.client.as_ref().or_else(|| self.own.get()) {
            return Ok(client);
        }
        // A redirect is not followed: reqwest would send any key but one in `authorization` on to another host.
        let builder = Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(redirect::Policy::none())
            .user_agent(concat!("askback/", env!("CARGO_PKG_VERSION")));
        let client = with_tls(builder)?
            .build()
            .map_err(|e| ProviderError::new("the HTTP client could not be built").caused_by(e.without_url()))?;
        Ok(self.own.get_or_init(|| client))
    }

    fn broken(&self, error: reqwest::Error) -> ProviderError {
        let (message, retryable) = if error.is_timeout() && !error.is_connect() {
            (format!("no whole reply within {} s", self.timeout.as_secs_f64()), true)
        } else if error.is_connect() || error.is_timeout() {
            ("the provider could not be reached".to_owned(), true)
        } else if error.is_body() || error.is_decode() {
            ("the reply broke off".to_owned(), true)
        } else if error.is_builder() || error.is_redirect() {
            ("the request could not be sent".to_owned(), false)
        } else {
            ("the connection broke off before a reply".to_owned(), true)
        };
        let failed = ProviderError::new(message).caused_by(error.without_url());
        if retryable { failed.retryable(None) } else { failed }
    }

    /// Takes our own keys out of a text of the other side, before it is quoted or clipped.
    fn scrubbed(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (_, value) in &self.headers {
            for secret in [value.trim(), value.trim_start_matches("Bearer ").trim()] {
                // A shorter value is no key, and its letters stand in ordinary words.
                if secret.len() >= 8 {
                    text = text.replace(secret, "[key]");
                }
            }
        }
        text
    }
}

/// Gives the client its own TLS configuration: nothing is installed for the process.
#[cfg(feature = "rustls-ring")]
fn with_tls(builder: ClientBuilder) -> Result<ClientBuilder, ProviderError> {
    let roots = rustls::RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|e| ProviderError::new("TLS could not be set up").caused_by(e))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(builder.tls_backend_preconfigured(config))
}

#[cfg(not(feature = "rustls-ring"))]
fn with_tls(builder: ClientBuilder) -> Result<ClientBuilder, ProviderError> {
    process_has_tls().map(|()| builder)
}

/// Whether the process has a TLS provider: reqwest takes that one, and panics without one.
#[cfg(any(test, not(feature = "rustls-ring")))]
fn process_has_tls() -> Result<(), ProviderError> {
    rustls::crypto::CryptoProvider::get_default().map(|_| ()).ok_or_else(|| {
        ProviderError::new(
            "there is no TLS provider: turn on askback's feature `rustls-ring`, \
             or hand the model a `reqwest::Client` with `client()`",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_tls_is_told_both_ways_out() {
        // No test of this binary installs a provider, and neither does the library.
        let told = process_has_tls().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(told.contains("`rustls-ring`") && told.contains("`reqwest::Client`"), "{told}");
    }
}
