package mail

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"jpintel/store"
	"jpintel/store/storetest"
)

// log is what a sender logs.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// lines are the lines with this message.
func (l *log) lines(msg string) (found []string) {
	for line := range strings.Lines(l.String()) {
		if strings.Contains(line, `"msg":"`+msg+`"`) {
			found = append(found, line)
		}
	}
	return found
}

func newSender(db *store.DB, send func(context.Context, Mail) error) (*Sender, *log) {
	l := &log{}
	return NewSender(db, slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})), send, time.Second), l
}

// round sends what is due.
func round(s *Sender) { s.sendDue(context.Background(), context.Background()) }

// start runs a sender in a synctest bubble until stop.
func start(t *testing.T, s *Sender) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); s.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	t.Cleanup(stop)
	return stop
}

// A server that is down is asked eleven times in a little over three days; the
// mail is sent when it is back, or failed.
func TestTheSchedule(t *testing.T) {
	for _, back := range []time.Duration{0, 3 * time.Hour, 1000 * time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			db := storetest.New(t)
			began := time.Now()
			var at []time.Duration
			s, l := newSender(db, func(context.Context, Mail) error {
				at = append(at, time.Since(began))
				if time.Since(began) < back {
					return &failure{step: stepConnect, err: errors.New("connection refused")}
				}
				return nil
			})
			s.Tick = time.Minute
			stop := start(t, s)
			queue(t, db, "cus_a", address)
			s.Wake()
			time.Sleep(100 * time.Hour)
			stop()
			all := []time.Duration{0}
			for _, wait := range schedule {
				all = append(all, all[len(all)-1]+wait)
			}
			want, state := all, "failed 11 connecting: connection refused"
			if i := slices.IndexFunc(all, func(d time.Duration) bool { return d >= back }); i >= 0 {
				want, state = all[:i+1], fmt.Sprintf("sent %d", i+1)
			}
			if !slices.Equal(at, want) {
				t.Errorf("attempts at %v, want %v", at, want)
			}
			if got := states(t, db); !slices.Equal(got, []string{state}) {
				t.Errorf("got %q, want %q", got, state)
			}
			if len(l.lines("mail_sent")) != map[bool]int{true: 1}[back < 100*time.Hour] || len(l.lines("mail_failed")) != map[bool]int{true: 1}[back > 100*time.Hour] || len(l.lines("mail_not_sent_yet")) != len(want)-1 {
				t.Errorf("the log: %s", l)
			}
		})
	}
}

// A server that greylists takes the mail the next time; one that refuses for
// good is not asked again. The log has the code and not the address.
func TestGreylistingAndRefusal(t *testing.T) {
	p, db := newPostbox(t), storetest.New(t)
	s, l := newSender(db, p.server(t, "smtp://localhost").Send)
	queue(t, db, "cus_secret", address)
	p.refuses("RCPT", says(451))
	round(s)
	round(s) // it is not due
	if got, want := states(t, db), "pending 1 sending SMTP RCPT TO command: the server answered 451"; got[0] != want {
		t.Fatalf("got %q, want %q", got, want)
	}
	makeDue(t, db)
	p.refuses("RCPT", nil)
	round(s)
	queue(t, db, "cus_secret", address)
	p.refuses("RCPT", says(550))
	round(s)
	makeDue(t, db)
	round(s)
	if got, want := states(t, db), []string{"sent 2", "failed 1 sending SMTP RCPT TO command: the server answered 550"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := len(p.got()); n != 1 {
		t.Errorf("%d mails", n)
	}
	if len(l.lines("mail_failed")) != 1 || !strings.Contains(l.lines("mail_failed")[0], `"level":"ERROR"`) {
		t.Errorf("the log: %s", l)
	}
	for _, secret := range []string{address, "ops@", "customer.example", "cus_secret"} {
		if strings.Contains(l.String(), secret) {
			t.Errorf("%s is in the log: %s", secret, l)
		}
	}
	if !strings.Contains(l.String(), `"customer_id_hash":"`+db.Keys.HashID("cus_secret")+`"`) {
		t.Errorf("the log has no hash: %s", l)
	}
}

// A crash between the server's answer and the commit sends the mail again: the
// same one, by its Message-ID.
func TestACrashAfterTheServerHasTakenIt(t *testing.T) {
	p, path := newPostbox(t), filepath.Join(t.TempDir(), "jpintel.db")
	smtp := p.server(t, "smtp://localhost")
	db, err := store.Open(t.Context(), path, store.Options{Server: true, Keys: storetest.Keys(t)})
	if err != nil {
		t.Fatal(err)
	}
	queue(t, db, "cus_a", address)
	crashed, _ := newSender(db, nil)
	sending, stop := context.WithCancel(t.Context())
	defer stop()
	crashed.Send = func(ctx context.Context, m Mail) error {
		err := errors.Join(smtp.Send(ctx, m), db.Close()) // nothing can be written any more
		stop()                                            // and nobody waits until it can
		return err
	}
	crashed.sendDue(t.Context(), sending)
	db = storetest.Open(t, path)
	makeDue(t, db)
	if got := states(t, db); !slices.Equal(got, []string{"pending 1"}) {
		t.Errorf("after the crash: %q", got)
	}
	s, _ := newSender(db, smtp.Send)
	round(s)
	got := p.got()
	if len(got) != 2 || !bytes.Equal(got[0].raw, got[1].raw) || !bytes.Contains(got[0].raw, []byte("\r\nMessage-ID: <mail_")) {
		t.Errorf("%d mails: %+v", len(got), got)
	}
	if got := states(t, db); !slices.Equal(got, []string{"sent 2"}) {
		t.Errorf("at last: %q", got)
	}
}

// An outcome that cannot be written down is kept, and the mail is not sent
// again meanwhile.
func TestAnOutcomeOutlivesAFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.New(t)
		pages := func(n int) {
			if err := db.Write(context.Background(), func(tx *store.Tx) error {
				return tx.QueryRow(fmt.Sprintf(`PRAGMA max_page_count = %d`, n)).Scan(&n)
			}); err != nil {
				t.Error(err)
			}
		}
		queue(t, db, "cus_a", address)
		var sent atomic.Int64
		s, l := newSender(db, func(context.Context, Mail) error {
			if sent.Add(1) > 1 {
				return nil
			}
			if err := db.Write(context.Background(), func(tx *store.Tx) error {
				_, err := tx.Exec(`CREATE TRIGGER big BEFORE UPDATE ON mails BEGIN INSERT INTO mails (mail_id, customer_id, kind, subject, body, state, next_attempt_at_ms, created_at_ms)
					VALUES ('x', 'cus_a', 'x', 'x', hex(zeroblob(1000000)), 'pending', 1e15, 0); END`)
				return err
			}); err != nil {
				t.Error(err)
			}
			pages(1) // SQLite takes the present size
			return nil
		})
		stop := start(t, s)
		time.Sleep(time.Minute)
		if sent.Load() != 1 || len(l.lines("mail_outcome_not_written")) < 50 {
			t.Errorf("sent %d times, %d lines", sent.Load(), len(l.lines("mail_outcome_not_written")))
		}
		pages(1 << 20)
		time.Sleep(time.Minute)
		stop()
		if got := states(t, db); sent.Load() != 1 || got[0] != "sent 1" {
			t.Errorf("sent %d times, %q", sent.Load(), got)
		}
	})
}

// Without an SMTP server, or an address, there is one line of the log for the
// operator.
func TestLoggedInstead(t *testing.T) {
	for name, send := range map[string]func(context.Context, Mail) error{
		"no server": nil, "no address": func(context.Context, Mail) error { t.Error("sent to nobody"); return nil },
	} {
		db := storetest.New(t)
		email, why := address, "JPINTEL_SMTP_URL is not set"
		if send != nil {
			email, why = "", "the customer has no email"
		}
		queue(t, db, "cus_secret", email)
		s, l := newSender(db, send)
		round(s)
		round(s)
		if got := states(t, db); !slices.Equal(got, []string{"logged 0 " + why}) {
			t.Errorf("%s: %q", name, got)
		}
		lines := l.lines("mail_logged")
		if len(lines) != 1 || strings.Count(l.String(), "\n") != 1 {
			t.Fatalf("%s: the log: %s", name, l)
		}
		for _, want := range []string{`"subscription_id":"sub_1"`, `"kind":"test"`, `"customer_id_hash":"` + db.Keys.HashID("cus_secret") + `"`, `"reason":"` + why + `"`, `"subject":"購読 subject"`} {
			if !strings.Contains(lines[0], want) {
				t.Errorf("%s: no %s in %s", name, want, lines[0])
			}
		}
		if strings.Contains(lines[0], "customer.example") || strings.Contains(lines[0], "cus_secret") {
			t.Errorf("%s: %s", name, lines[0])
		}
	}
}

// A stop waits for the mail that is under way, but not for long. One that is
// cut off is due again.
func TestAStop(t *testing.T) {
	for takes, want := range map[time.Duration]string{3 * time.Second: "sent 1", time.Hour: "pending 1 connecting: context canceled"} {
		synctest.Test(t, func(t *testing.T) {
			db := storetest.New(t)
			queue(t, db, "cus_a", address)
			queue(t, db, "cus_a", address)
			s, _ := newSender(db, func(ctx context.Context, _ Mail) error {
				select {
				case <-time.After(takes):
					return nil
				case <-ctx.Done():
					return &failure{step: stepConnect, err: ctx.Err()}
				}
			})
			stop := start(t, s)
			time.Sleep(time.Second)
			began := time.Now()
			stop()
			if took := time.Since(began); took != min(takes-time.Second, stopWait) {
				t.Errorf("the stop took %v", took)
			}
			if got := states(t, db); !slices.Equal(got, []string{want, "pending 0"}) {
				t.Errorf("got %q, want %q and one that was not begun", got, want)
			}
		})
	}
}

// A mail that nobody announced is found by the ticker, an announced one at once.
func TestFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.New(t)
		var at []time.Time
		s, _ := newSender(db, func(context.Context, Mail) error { at = append(at, time.Now()); return nil })
		s.Tick = time.Minute
		began := time.Now()
		stop := start(t, s)
		time.Sleep(time.Second)
		queue(t, db, "cus_a", address)
		s.Wake()
		s.Wake() // never waits
		synctest.Wait()
		queue(t, db, "cus_a", address)
		time.Sleep(time.Hour)
		stop()
		if len(at) != 2 || at[0].Sub(began) != time.Second || at[1].Sub(began) != time.Minute {
			t.Errorf("sent at %v, from %v", at, began)
		}
	})
}

// Down, then up again: a real server that is started late.
func TestAServerThatComesBack(t *testing.T) {
	p, db := newPostbox(t), storetest.New(t)
	server := p.server(t, "smtp://localhost")
	up := server.dial
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	server.dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, closed.Addr().String())
	}
	s, _ := newSender(db, server.Send)
	queue(t, db, "cus_a", address)
	round(s)
	if got := states(t, db); !strings.HasPrefix(got[0], "pending 1 connecting: ") {
		t.Errorf("got %q", got)
	}
	server.dial = up
	makeDue(t, db)
	round(s)
	if got := states(t, db); got[0] != "sent 2" || len(p.got()) != 1 {
		t.Errorf("got %q, %d mails", got, len(p.got()))
	}
}

// Finished mails go when they are old enough, a few at a time; what is pending
// stays.
func TestDeleteFinished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := storetest.New(t)
		s, _ := newSender(db, nil)
		for range 5 {
			queue(t, db, "cus_a", address)
		}
		round(s)
		time.Sleep(time.Hour)
		queue(t, db, "cus_a", address)
		var deleted []int64
		for _, back := range []time.Duration{time.Hour, 0, 0, 0} {
			if err := db.Write(t.Context(), func(tx *store.Tx) error {
				n, err := DeleteFinished(tx, tx.Now.Add(-back), 3)
				deleted = append(deleted, n)
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		if got := states(t, db); !slices.Equal(deleted, []int64{0, 3, 2, 0}) || !slices.Equal(got, []string{"pending 0"}) {
			t.Errorf("deleted %d, left %q", deleted, got)
		}
	})
}

// Looking for what is due, and for what has expired, does not read the rest.
func TestQueriesWalkTheirIndex(t *testing.T) {
	db := storetest.New(t)
	for query, c := range map[string]struct {
		args int
		want string
	}{dueQuery: {1, "mails_due (next_attempt_at_ms<?)"}, deleteQuery: {2, "mails_finished (finished_at_ms<?)"}} {
		rows, err := db.Reader(t.Context()).Query("EXPLAIN QUERY PLAN "+query, make([]any, c.args)...)
		if err != nil {
			t.Fatal(err)
		}
		var plan strings.Builder
		for rows.Next() {
			var id, parent, unused int
			var detail string
			if err := rows.Scan(&id, &parent, &unused, &detail); err != nil {
				t.Fatal(err)
			}
			plan.WriteString(detail + "\n")
		}
		rows.Close()
		if !strings.Contains(plan.String(), c.want) || strings.Contains(plan.String(), "TEMP B-TREE") || strings.Contains(plan.String(), "SCAN") {
			t.Errorf("%s\n%s", query, plan.String())
		}
	}
}
