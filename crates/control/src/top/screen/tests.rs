use super::*;
use crate::top::reading::Reading;
use crate::top::recorded;
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;

fn screen() -> Screen {
    let mut screen = Screen::new(Duration::from_secs(2));
    screen.show(recorded::change());
    screen
}

fn press(screen: &mut Screen, keys: &str) -> Wish {
    keys.chars().map(|key| screen.key(KeyEvent::from(KeyCode::Char(key)))).last().unwrap_or(Wish::Nothing)
}

/// What a terminal of this size shows.
fn seen(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let buffer = terminal.backend().buffer().clone();
    (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol().to_owned()).collect::<String>()).collect()
}

fn line<'a>(lines: &'a [String], begins: &str) -> &'a str {
    lines.iter().find(|line| line.trim_start().starts_with(begins)).unwrap_or_else(|| panic!("no {begins}: {lines:#?}"))
}

#[test]
fn a_frame_has_every_table_and_how_to_go_on() {
    let lines = seen(&mut screen(), 200, 60);
    assert!(lines[0].starts_with("simoom 0.1.0  pid 4711  up 1h02m  AF_XDP: eth0 copy  every 2 s"), "{}", lines[0]);
    for title in ["Threads", "Services", "Connections", "Times", "Drops", "All figures"] {
        line(&lines, title);
    }
    assert!(line(&lines, "dns ").contains(" 515 "), "{lines:#?}");
    assert!(lines[59].starts_with("q quit  tab next table"), "{}", lines[59]);
}

#[test]
fn keys_choose_sort_scroll_and_zoom() {
    let mut screen = screen();
    for _ in 0..4 {
        screen.key(KeyEvent::from(KeyCode::Tab));
    }
    // Drops, alone, by their names and then turned round
    press(&mut screen, "zs");
    let lines = seen(&mut screen, 120, 12);
    assert!(!lines.iter().any(|line| line.contains("Threads")), "{lines:#?}");
    assert!(line(&lines, "drops").starts_with("drops^"), "{lines:#?}");
    assert!(lines[4].starts_with("dns_connections_refused"), "{lines:#?}");
    press(&mut screen, "r");
    let lines = seen(&mut screen, 120, 12);
    assert!(lines[4].starts_with("xdp_frames_dropped"), "{lines:#?}");
    // a window of two rows over four
    screen.key(KeyEvent::from(KeyCode::End));
    let lines = seen(&mut screen, 120, 7);
    assert!(line(&lines, "Drops").contains("Drops 3-4 of 4"), "{lines:#?}");
    assert!(lines[5].starts_with("dns_connections_refused"), "{lines:#?}");
    screen.key(KeyEvent::from(KeyCode::Up));
    assert!(line(&seen(&mut screen, 120, 7), "Drops").contains("Drops 2-3 of 4"));
    // the order outlasts the next reading
    screen.show(recorded::change());
    let lines = seen(&mut screen, 120, 12);
    assert!(lines[4].starts_with("xdp_frames_dropped"), "{lines:#?}");
}

#[test]
fn sorting_starts_with_the_largest() {
    let mut screen = screen();
    screen.key(KeyEvent::from(KeyCode::Tab));
    press(&mut screen, "zss");
    let lines = seen(&mut screen, 120, 12);
    assert!(line(&lines, "service").contains("requests/sv"), "{lines:#?}");
    let order: Vec<&str> = lines[4..7].iter().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert_eq!(order, ["dns", "web", "gopher"]);
    press(&mut screen, "S");
    assert!(line(&seen(&mut screen, 120, 12), "service").starts_with("service^"));
}

#[test]
fn the_interval_has_bounds_and_a_pause_is_said() {
    let mut screen = screen();
    press(&mut screen, "p--------------");
    assert_eq!((screen.interval, screen.paused), (FASTEST, true));
    assert!(seen(&mut screen, 120, 5)[0].contains("every 0.1 s  PAUSED"));
    press(&mut screen, "p++++++++++++++++++++");
    assert_eq!((screen.interval, screen.paused), (SLOWEST, false));
}

#[test]
fn the_keys_that_end_it_end_it() {
    assert_eq!(press(&mut screen(), "q"), Wish::Quit);
    assert_eq!(screen().key(KeyEvent::from(KeyCode::Esc)), Wish::Quit);
    assert_eq!(screen().key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Wish::Quit);
    assert_eq!(press(&mut screen(), "c"), Wish::Nothing);
}

#[test]
fn a_server_that_went_is_said_and_what_it_said_last_stays() {
    let mut screen = screen();
    screen.fail("no server answers: /run/simoom/control: Connection refused".into());
    let lines = seen(&mut screen, 120, 40);
    assert!(lines[1].starts_with("no server answers: "), "{lines:#?}");
    line(&lines, "dns ");
    // another one comes, whose counters begin again
    let status = serde_json::json!({"version": "0.1.0", "pid": 5000, "uptime_s": 0, "backend": "sockets, 1 thread"});
    let stats = serde_json::json!({"metrics": [
        {"name": "dns_questions_total", "type": "counter", "labels": {}, "value": 1}]});
    let again = Reading::new(Duration::from_secs(20), status, &stats);
    screen.show(Change::between(Some(&recorded::reading(1)), &again));
    let lines = seen(&mut screen, 120, 40);
    assert!(lines[0].contains("up 0s") && lines[0].contains("STARTED ANEW"), "{}", lines[0]);
    assert!(line(&lines, "dns ").split_whitespace().nth(1) == Some("-"), "{lines:#?}");
}

#[test]
fn times_since_the_start_are_short() {
    for (seconds, text) in
        [(0, "0s"), (59, "59s"), (61, "1m01s"), (3725, "1h02m"), (90_000, "1d01h"), (864_000, "10d00h")]
    {
        assert_eq!(uptime(seconds), text);
    }
}

#[test]
fn a_plain_frame_has_all_tables_in_full() {
    let text = plain(&recorded::change(), 100);
    for title in ["\nThreads\n", "\nServices\n", "\nConnections\n", "\nTimes\n", "\nDrops\n"] {
        assert!(text.contains(title), "{title}: {text}");
    }
    assert!(!text.contains("All figures") && text.lines().all(|line| line.chars().count() <= 100), "{text}");
    assert!(text.starts_with("simoom 0.1.0  pid 4711  up 1h02m  AF_XDP: eth0 copy  over 2 s\n"), "{text}");
}

proptest! {
    /// Whatever the size and the keys, it draws, and nothing is beyond the edges.
    #[test]
    fn any_size_and_any_keys_do(width in 0u16..130, height in 0u16..50, keys in "[sSrzp+-]{0,12}", moves in proptest::collection::vec(0usize..8, 0..12)) {
        let mut screen = screen();
        let codes = [KeyCode::Tab, KeyCode::BackTab, KeyCode::Up, KeyCode::Down, KeyCode::PageUp, KeyCode::PageDown,
            KeyCode::Home, KeyCode::End];
        for (n, key) in keys.chars().enumerate() {
            press(&mut screen, &key.to_string());
            if let Some(code) = moves.get(n) {
                screen.key(KeyEvent::from(codes[*code]));
            }
            let lines = screen.lines(usize::from(width), usize::from(height));
            prop_assert!(lines.len() <= usize::from(height));
            prop_assert!(lines.iter().all(|line| line.width() <= usize::from(width)));
            if width > 0 && height > 0 {
                seen(&mut screen, width, height);
            }
        }
    }
}
