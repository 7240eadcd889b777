package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"jpintel/billing/modelgatetest"
)

//go:embed testdata/jgrants/*.json
var sampleDays embed.FS

const (
	// burstPrograms are what the server is killed in the middle of.
	burstPrograms = 2000
	// burstSeen is how many of the burst's deliveries arrive before the kill.
	burstSeen = 300
	// demoPatience bounds each wait of the demo, on a slow and busy machine too.
	demoPatience = 2 * time.Minute
)

type demoCmd struct {
	Programs []string `help:"Snapshots to import in place of the sample, in order." placeholder:"FILE…"`
	More     []string `arg:"" optional:"" name:"file" help:"The rest of them."`
	Keep     bool     `help:"Keep the temporary folder: the file, and the server's log."`
}

// demo is one run: a server as a child process on a temporary file, and two
// receivers in this process.
type demo struct {
	*app
	dir     string
	server  *child
	client  *apiClient
	healthy *demoReceiver
	flaky   *demoReceiver

	partner    *modelgatetest.Upstream
	partnerURL string
}

// Run shows the product on a temporary file. It fails unless every committed
// event is accounted for.
func (c *demoCmd) Run(ctx context.Context, a *app) error {
	dir, err := os.MkdirTemp("", "jpintel-demo-")
	if err != nil {
		return err
	}
	d := &demo{app: a, dir: dir}
	err = d.run(ctx, slices.Concat(c.Programs, c.More))
	if d.server != nil {
		err = errors.Join(err, d.server.stop())
	}
	if c.Keep || err != nil {
		fmt.Fprintf(a.stderr, "The file and the server's log are in %s\n", dir)
		return err
	}
	return os.RemoveAll(dir)
}

func (d *demo) say(format string, args ...any) { fmt.Fprintf(d.stdout, format+"\n", args...) }

func (d *demo) run(ctx context.Context, files []string) error {
	if err := d.start(ctx); err != nil {
		return err
	}
	if err := d.signUp(ctx); err != nil {
		return err
	}
	if err := d.importDays(ctx, files); err != nil {
		return err
	}
	if err := d.killInABurst(ctx); err != nil {
		return err
	}
	if err := d.provision(ctx); err != nil {
		return err
	}
	if err := d.pay(ctx); err != nil {
		return err
	}
	return d.account(ctx)
}

// start makes two receivers and the server.
func (d *demo) start(ctx context.Context) (err error) {
	if d.healthy, err = newDemoReceiver("healthy", d.config.Brand, 0); err != nil {
		return err
	}
	if d.flaky, err = newDemoReceiver("flaky", d.config.Brand, 2); err != nil {
		return err
	}
	if err := d.startPartner(); err != nil {
		return err
	}
	d.say("1. A server on a temporary file, and two receivers: one healthy, one that fails twice and then recovers.")
	d.client = &apiClient{token: randomHex()}
	return d.boot(ctx)
}

func (d *demo) boot(ctx context.Context) (err error) {
	d.server, err = startChild(ctx, d.dir, []string{
		"JPINTEL_DB=" + d.db(), "JPINTEL_ADDR=127.0.0.1:0", "JPINTEL_ADMIN_TOKEN=" + d.client.token, "JPINTEL_LOG_FORMAT=json",
		"JPINTEL_WEBHOOK_ALLOW_CIDRS=127.0.0.0/8", "JPINTEL_WEBHOOK_ALLOW_HTTP=1", "JPINTEL_WEBHOOK_RETRY_SCHEDULE=300ms,600ms,1s,2s,4s", "JPINTEL_WEBHOOK_RATE=0", "JPINTEL_API_RATE=0", "JPINTEL_WEBHOOK_DAILY_CAP=0",
		"MODELGATE_BASE_URL=" + d.partnerURL, "MODELGATE_API_KEY=" + modelgatetest.DevToken, "MODELGATE_TIMEOUT=" + demoTimeout, "MODELGATE_MODELS=small", "JPINTEL_BILLING_RETRY_BASE=300ms",
		"JPINTEL_STRIPE_WEBHOOK_SECRETS=" + demoStripe, "JPINTEL_STRIPE_LIVEMODE=0",
	})
	if err != nil {
		return err
	}
	d.client.base = "http://" + d.server.addr
	d.say("   server: process %d at %s", d.server.pid(), d.client.base)
	return nil
}

func (d *demo) db() string { return filepath.Join(d.dir, "jpintel.db") }

// signUp makes a paid customer with a key and two subscriptions.
func (d *demo) signUp(ctx context.Context) error {
	d.say("\n2. A paid customer with an API key, and two subscriptions, one with a filter.")
	if err := d.client.admin(ctx, "POST", "/v1/admin/customers", map[string]any{"customer_id": "cus_demo", "tier": "paid"}, nil); err != nil {
		return err
	}
	var key createKeyAnswer
	if err := d.client.admin(ctx, "POST", "/v1/admin/customers/cus_demo/keys", nil, &key); err != nil {
		return err
	}
	d.client.key = key.APIKey
	types := []string{"program.created", "program.updated"}
	own := []string{"key.status_changed", "customer.provisioned", "credit.adjustment_posted"}
	if err := d.subscribe(ctx, d.healthy, map[string]any{"events": slices.Concat(types, own)}); err != nil {
		return err
	}
	return d.subscribe(ctx, d.flaky, map[string]any{"events": types, "filter": map[string]string{"prefecture": "東京都"}, "envelope": "v2"})
}

func (d *demo) subscribe(ctx context.Context, e *demoReceiver, body map[string]any) error {
	body["url"] = e.url
	var answer struct {
		SubscriptionID string `json:"subscription_id"`
		SigningSecret  string `json:"signing_secret"`
	}
	if err := d.client.customer(ctx, "POST", "/v1/webhooks/subscribe", body, &answer); err != nil {
		return err
	}
	e.subscribed(answer.SubscriptionID, answer.SigningSecret)
	d.say("   %-8s %s  secret %.12s…  filter %v", e.name, answer.SubscriptionID, answer.SigningSecret, body["filter"])
	return nil
}

// importDays imports the snapshots one after the other and waits for what
// comes of each.
func (d *demo) importDays(ctx context.Context, files []string) error {
	if len(files) == 0 {
		var err error
		if files, err = d.unpackSample(); err != nil {
			return err
		}
	}
	d.say("\n3. Program snapshots, day by day: what changed becomes events, in the transaction of the change.")
	for _, file := range files {
		report, err := d.importOne(ctx, file)
		if err != nil {
			return err
		}
		d.say("   %s: %d read, %d created, %d updated, %d unchanged", filepath.Base(file), report.Read, report.Created, report.Updated, report.Unchanged)
		if err := d.settled(ctx); err != nil {
			return err
		}
	}
	d.say("   What arrived, for example:")
	for _, got := range d.healthy.samples(2) {
		d.say("   %s  <- %s attempt %d, both signatures verified, answered %d\n      %s", d.healthy.name, got.EventType, got.Attempt, got.Answered, got.Body)
	}
	d.say("   The flaky receiver's first event, the same id and bytes each time:")
	for _, got := range d.flaky.firstEvent() {
		d.say("   %s    <- %s attempt %d at %s, answered %d", d.flaky.name, got.EventID, got.Attempt, got.At.Format("15:04:05.000"), got.Answered)
	}
	return nil
}

func (d *demo) unpackSample() ([]string, error) {
	days, err := sampleDays.ReadDir("testdata/jgrants")
	if err != nil {
		return nil, err
	}
	// By date, which stands before the extension: the detail call's day is last.
	var files []string
	for _, kind := range []string{"list-", "detail-"} {
		for _, day := range days {
			if len(day.Name()) < len(kind) || day.Name()[:len(kind)] != kind {
				continue
			}
			text, err := sampleDays.ReadFile("testdata/jgrants/" + day.Name())
			if err != nil {
				return nil, err
			}
			path := filepath.Join(d.dir, day.Name())
			if err := os.WriteFile(path, text, 0o600); err != nil {
				return nil, err
			}
			files = append(files, path)
		}
	}
	return files, nil
}

type importReport struct {
	Read, Created, Updated, Unchanged, Rejected int
}

// importOne runs the command that an operator would, beside the server.
func (d *demo) importOne(ctx context.Context, file string) (importReport, error) {
	out, err := runChild(ctx, d.dir, []string{"JPINTEL_DB=" + d.db()}, "programs", "import", file, "--json")
	var report importReport
	if jsonErr := json.Unmarshal(out, &report); jsonErr != nil {
		return report, fmt.Errorf("importing %s: %w", file, errors.Join(err, jsonErr))
	}
	if report.Rejected > 0 {
		return report, fmt.Errorf("importing %s: %d records were rejected", file, report.Rejected)
	}
	return report, err
}

// killInABurst kills the server while deliveries are on their way and starts
// it again.
func (d *demo) killInABurst(ctx context.Context) error {
	d.say("\n4. A burst of %d new programs; in the middle of it the server is killed (SIGKILL) and started again.", burstPrograms)
	burst := filepath.Join(d.dir, "burst.ndjson")
	if err := writeBurst(burst); err != nil {
		return err
	}
	before := d.healthy.count()
	imported := make(chan error, 1)
	go func() {
		_, err := d.importOne(ctx, burst)
		imported <- err
	}()
	if err := d.until(ctx, "the burst to arrive", func() (bool, error) { return d.healthy.count()-before >= burstSeen, nil }); err != nil {
		return err
	}
	if err := d.server.kill(); err != nil {
		return err
	}
	d.say("   killed after %d of the burst's requests", d.healthy.count()-before)
	if err := d.boot(ctx); err != nil {
		return err
	}
	if err := <-imported; err != nil {
		return err
	}
	return d.settled(ctx)
}

func writeBurst(path string) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	areas := []string{"東京都", "大阪府", "奈良県", "全国"}
	enc := json.NewEncoder(file)
	for i := range burstPrograms {
		if err := enc.Encode(map[string]any{
			"unified_id": fmt.Sprintf("UNI-burst-%05d", i), "primary_name": fmt.Sprintf("試験用補助金 %d", i),
			"prefectures": []string{areas[i%len(areas)]}, "amount_max_man_yen": i, "source_url": fmt.Sprintf("https://example.jp/programs/%d", i),
		}); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	return file.Close()
}

// settled waits until nothing is unpublished and nothing pending.
func (d *demo) settled(ctx context.Context) error {
	return d.until(ctx, "the deliveries", func() (bool, error) {
		for _, e := range []*demoReceiver{d.healthy, d.flaky} {
			pending, err := d.client.deliveries(ctx, e.subscription, "pending", 1)
			if err != nil || len(pending) > 0 {
				return false, err
			}
		}
		events, err := d.client.events(ctx)
		return err == nil && d.healthy.distinct() == len(events), err
	})
}

func (d *demo) until(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited in vain for %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// account holds what was committed against what arrived.
func (d *demo) account(ctx context.Context) error {
	d.say("\n7. The account.")
	events, err := d.client.events(ctx)
	if err != nil {
		return err
	}
	d.say("   %d events committed", len(events))
	d.say("   %-10s %8s %10s %10s %9s %8s %s", "receiver", "expected", "delivered", "requests", "repeated", "pending", "problems")
	balanced := true
	for _, e := range []*demoReceiver{d.healthy, d.flaky} {
		expected, err := d.client.deliveries(ctx, e.subscription, "", 0)
		if err != nil {
			return err
		}
		line := e.account(expected)
		d.say("   %-10s %8d %10d %10d %9d %8d %d", e.name, line.expected, line.delivered, line.requests, line.repeated, line.pending, len(line.problems))
		for _, p := range line.problems {
			d.say("      %s", p)
		}
		balanced = balanced && len(line.problems) == 0 && line.pending == 0 && line.delivered == line.expected
	}
	if d.healthy.distinct() != len(events) {
		d.say("   the unfiltered receiver has %d of %d events", d.healthy.distinct(), len(events))
		balanced = false
	}
	if !balanced {
		return errors.New("the account does not balance")
	}
	d.say("   It balances: every event arrived, signed, and every repetition carried the same id and the same bytes.")
	return nil
}
