//! `memspill run --metrics ADDR:PORT`: GET /metrics, and nothing else.
//!
//! One thread answers one caller at a time. A caller has two seconds for his request and as many to take the
//! answer, and then the next one comes: whoever is slow, or talks nonsense, holds up other readers of metrics
//! and nobody else.
//!
//! What it does not do: know who asks. By default only this machine can.

use crate::message::words;
use crate::metrics;
use memspill_pager::run::Run;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CALLER: Duration = Duration::from_secs(2);
const REQUEST_BYTES_MAX: usize = 8192;
/// Where no connection can be accepted just now, for want of descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// PORT (or :PORT) is one of this machine alone; another address must be given.
pub fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let this_machine = |port: u16| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let port = text.strip_prefix("localhost:").or(text.strip_prefix(':')).unwrap_or(text);
    port.parse().map(this_machine).or_else(|_| text.parse()).map_err(|_| {
        format!("{text:?} is no address: give PORT for this machine alone, or ADDR:PORT such as 0.0.0.0:9464")
    })
}

/// Before the command starts, so that an address that is taken is an error then.
pub fn listen(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).map_err(|error| {
        let mends = match error.kind() {
            io::ErrorKind::AddrNotAvailable => "that is no address of this machine",
            io::ErrorKind::PermissionDenied => "give a PORT of 1024 or above",
            _ => "give another PORT",
        };
        format!("--metrics {address}: {}: {mends}", words(&error))
    })
}

/// Answer until the run ends.
pub fn serve(listener: TcpListener, run: Arc<Run>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("memspill-metrics".into()).stack_size(256 << 10);
    thread.spawn(move || {
        while !run.is_stopping() {
            match listener.accept() {
                // A caller that is gone does without an answer.
                Ok((caller, _)) => _ = answer(caller, || metrics::of_run(&run)),
                Err(_) => std::thread::sleep(ACCEPT_AGAIN),
            }
        }
    })?;
    Ok(())
}

fn answer(mut caller: TcpStream, text: impl FnOnce() -> String) -> io::Result<()> {
    caller.set_write_timeout(Some(CALLER))?;
    let Some(request) = request_of(&mut caller)? else { return Ok(()) };
    caller.write_all(response(&request, text).as_bytes())
}

/// The first line of a request, once all of its head is there. None: the caller has closed.
fn request_of(caller: &mut TcpStream) -> io::Result<Option<String>> {
    let until = Instant::now() + CALLER;
    let mut head = Vec::new();
    let mut part = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() < REQUEST_BYTES_MAX {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        caller.set_read_timeout(Some(left))?;
        match caller.read(&mut part)? {
            0 => return Ok(None),
            length => head.extend_from_slice(&part[..length]),
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(Some(String::from_utf8_lossy(line).into_owned()))
}

fn response(request: &str, text: impl FnOnce() -> String) -> String {
    let words: Vec<&str> = request.split(' ').collect();
    let (status, kind, body) = match words[..] {
        ["GET", path, version] if version.starts_with("HTTP/1.") => match path.split('?').next() {
            Some("/metrics") => ("200 OK", metrics::CONTENT_TYPE, text()),
            _ => ("404 Not Found", "text/plain", "memspill: metrics are at /metrics\n".to_owned()),
        },
        [_, _, version] if version.starts_with("HTTP/1.") => {
            ("405 Method Not Allowed", "text/plain", "memspill: GET /metrics is all there is\n".to_owned())
        }
        _ => ("400 Bad Request", "text/plain", "memspill: that is no HTTP\n".to_owned()),
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}");
    format!("{head}\r\nConnection: close\r\n\r\n{body}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_unless_told() {
        let parsed = |text: &str| parse_address(text).map(|address| address.to_string());
        for text in ["9464", ":9464", "localhost:9464", "127.0.0.1:9464"] {
            assert_eq!(parsed(text).as_deref(), Ok("127.0.0.1:9464"), "{text}");
        }
        assert_eq!(parsed("0.0.0.0:1").as_deref(), Ok("0.0.0.0:1"));
        assert_eq!(parsed("[::]:1").as_deref(), Ok("[::]:1"));
        for text in ["", ":", "host:9464", "0.0.0.0", "65536", "-1", "1 ", "127.0.0.1:"] {
            assert!(parsed(text).unwrap_err().contains("PORT for this machine"), "{text}");
        }
    }

    /// What a caller gets who sends this and closes his half.
    fn answered(request: &[u8]) -> String {
        let listener = listen(parse_address("0").unwrap()).unwrap();
        let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        caller.write_all(request).unwrap();
        caller.shutdown(std::net::Shutdown::Write).unwrap();
        let _ = answer(listener.accept().unwrap().0, || "the text\n".to_owned());
        let mut answer = String::new();
        let _ = caller.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn get_metrics_is_all_there_is() {
        let all = answered(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(
            all.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text; version=1.0.0")
        );
        assert!(all.contains("Content-Length: 9\r\n") && all.ends_with("\r\n\r\nthe text\n"), "{all}");
        assert!(answered(b"GET /metrics?x=1 HTTP/1.0\r\n\r\n").contains(" 200 "));
        assert!(answered(b"GET / HTTP/1.1\r\n\r\n").contains(" 404 "));
        assert!(answered(b"POST /metrics HTTP/1.1\r\n\r\n").contains(" 405 "));
        for nonsense in [&b"\r\n\r\n"[..], b"GET /metrics\r\n\r\n", &[0xff; REQUEST_BYTES_MAX]] {
            assert!(answered(nonsense).contains(" 400 "), "{nonsense:?}");
        }
        assert_eq!(answered(b"GET /metrics HTTP/1.1\r\n"), "", "half a request");
    }

    #[test]
    fn a_caller_that_sends_nothing_is_dropped_in_time() {
        let listener = listen(parse_address("0").unwrap()).unwrap();
        let _caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let start = Instant::now();
        assert!(answer(listener.accept().unwrap().0, || unreachable!("nothing was asked")).is_err());
        assert!(start.elapsed() < 2 * CALLER);
    }

    #[test]
    fn an_address_that_is_taken_is_an_error() {
        let taken = listen(parse_address("0").unwrap()).unwrap();
        assert!(listen(taken.local_addr().unwrap()).unwrap_err().contains("give another PORT"));
    }
}
