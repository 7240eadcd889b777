package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"jpintel/billing"
	"jpintel/billing/billingtest"
	"jpintel/billing/modelgatetest"
	"jpintel/store"
	"jpintel/store/storetest"
)

// killScene is a server that is killed in the middle of its operations, and the
// upstream's stand-in, which lives on in the test's process.
type killScene struct {
	*procServer
	t    testing.TB
	db   string
	up   *modelgatetest.Upstream
	said map[string]string // what the processes have printed
	// restored: the file does not know of all that was sent.
	restored bool
}

// newKillScene begins with the upstream; start begins the server.
func newKillScene(t testing.TB, options modelgatetest.Options, faults ...modelgatetest.Rule) *killScene {
	t.Helper()
	k := &killScene{t: t, db: filepath.Join(t.TempDir(), "jpintel.db"), up: modelgatetest.New(options).Start(t), said: map[string]string{}}
	if err := k.up.AddFaults(faults...); err != nil {
		t.Fatal(err)
	}
	return k
}

// env has a server use the upstream, and not wait for long.
func (k *killScene) env() []string {
	return []string{"MODELGATE_BASE_URL=" + k.up.BaseURL(), "MODELGATE_API_KEY=" + modelgatetest.DevToken, "MODELGATE_MODELS=small",
		"JPINTEL_BILLING_RETRY_BASE=10ms", "JPINTEL_BILLING_SETTLE=100ms"}
}

// start starts the server, or starts it again.
func (k *killScene) start(environment ...string) {
	k.t.Helper()
	client := &apiClient{token: procToken}
	if k.procServer != nil {
		client = k.client
	}
	k.procServer = procServeAs(k.t, client, k.db, append(k.env(), environment...)...)
}

// struck waits until the nth of the faults, from 0, has hit a request.
func (k *killScene) struck(n int) {
	k.t.Helper()
	k.await(func(state modelgatetest.State) bool { return state.Faults[n].Hits > 0 })
}

func (k *killScene) await(condition func(modelgatetest.State) bool) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), procPatience)
	defer cancel()
	if err := k.up.Await(ctx, condition); err != nil {
		k.t.Fatalf("%v: %+v", err, k.up.State().Faults)
	}
}

// crash kills the server, and looks at what it has left.
func (k *killScene) crash() {
	k.t.Helper()
	k.kill()
	k.said[fmt.Sprint("the log of process ", k.cmd.Process.Pid)] = k.out.String()
	k.await(func(state modelgatetest.State) bool { // the upstream has noticed
		for _, traffic := range state.Idempotency {
			if traffic.InFlight > 0 {
				return false
			}
		}
		return true
	})
	k.look(nil)
}

// look opens a copy of the file as it is: the next server finds what the last one
// has left. The invariants hold in it.
func (k *killScene) look(see func(*store.DB)) {
	k.t.Helper()
	path := filepath.Join(k.t.TempDir(), "copy.db")
	for _, end := range []string{"", "-wal"} {
		text, err := os.ReadFile(k.db + end)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		k.must(errors.Join(err, os.WriteFile(path+end, text, 0o600)))
	}
	db, err := store.Open(k.t.Context(), path, store.Options{Server: true, Keys: storetest.Keys(k.t)})
	k.must(err)
	defer db.Close()
	k.world(db).Check(k.t)
	storetest.Check(k.t, db)
	if see != nil {
		see(db)
	}
}

func (k *killScene) world(db *store.DB) billingtest.World {
	return billingtest.World{DB: db, Upstream: k.up, Texts: k.said, Restored: k.restored}
}

// rows reads lines of text out of a copy of the file.
func (k *killScene) rows(query string) (all []string) {
	k.t.Helper()
	k.look(func(db *store.DB) {
		crashRows(k.t, db, query, func(scan func(...any) error) error {
			var text string
			err := scan(&text)
			all = append(all, text)
			return err
		})
	})
	return all
}

// signUp has customers provisioned.
func (k *killScene) signUp(customers ...string) {
	k.t.Helper()
	for _, id := range customers {
		body := map[string]any{"customer_id": id, "tier": "paid", "signup_version": 1, "spend_limit": "100.00", "currency": "USD"}
		k.must(k.client.adminOnce(k.t.Context(), "click-"+id, "/v1/admin/customers", body, nil))
	}
}

// becomes waits until a customer is in a state.
func (k *killScene) becomes(id string, want billing.CustomerStatus) (c billing.Customer) {
	k.t.Helper()
	procUntil(k.t, id+" is "+string(want), func() bool {
		k.must(k.client.admin(k.t.Context(), "GET", "/v1/admin/customers/"+id, nil, &c))
		return c.Status != nil && *c.Status == want
	})
	return c
}

// operations are a customer's, the newest first.
func (k *killScene) operations(customer string) []billing.Operation {
	k.t.Helper()
	var page store.Page[billing.Operation]
	k.must(k.client.admin(k.t.Context(), "GET", "/v1/admin/operations?customer="+customer, nil, &page))
	return page.Data
}

// ops runs one of the operator's commands beside the server.
func (k *killScene) ops(args ...string) *proc {
	k.t.Helper()
	p := procRun(k.t, append([]string{"ops"}, args...), append(procEnv(k.db), k.env()...)...)
	k.said[fmt.Sprint("ops ", args, " of process ", p.cmd.Process.Pid)] = p.out.String() + p.err.String()
	return p
}

// end stops the server: everything is done, and one of it.
func (k *killScene) end() {
	k.t.Helper()
	k.stop()
	k.said["the last log"] = k.out.String()
	k.look(func(db *store.DB) { k.world(db).Settled(k.t) })
}

// readyOnce is the end of a sign-up that was killed: one of everything.
func (k *killScene) readyOnce() modelgatetest.State {
	k.t.Helper()
	k.becomes("cus_a", billing.Ready)
	k.end()
	state := k.up.State()
	if len(state.Groups) != 1 || len(state.Keys) != 1 || len(state.Audit) != 3 || state.Limits[state.Groups[0].ID].SpendLimit != "100.00" {
		k.t.Errorf("groups %+v, keys %+v, audit %+v", state.Groups, state.Keys, state.Audit)
	}
	return state
}

// calls are the three calls of a sign-up: the action, the path, and what its key
// begins with.
var calls = []struct{ action, path, key string }{
	{"create_group", `^/groups$`, "create-group-"}, {"create_key", `/keys$`, "create-key-"}, {"set_initial_limit", `/limits$`, "set-spend-limit:"},
}

// eachCall runs a test for each of them.
func eachCall(t *testing.T, test func(t *testing.T, action, path, key string)) {
	for _, c := range calls {
		t.Run(c.action, func(t *testing.T) { t.Parallel(); test(t, c.action, c.path, c.key) })
	}
}

// traffic is what the upstream saw under the key that begins so.
func traffic(state modelgatetest.State, key string) (seen modelgatetest.Traffic) {
	for name, t := range state.Idempotency {
		if strings.HasPrefix(name, key) {
			seen = t
		}
	}
	return seen
}

func hang(path string, at modelgatetest.At) modelgatetest.Rule {
	return modelgatetest.Rule{Match: modelgatetest.Match{PathRE: path}, At: at, Do: "hang", Times: 1}
}

// S01 and S78: accepted, and nobody has claimed it. With the kill switch on
// nothing leaves; without it, and after a kill, everything goes on.
func TestS01KilledBeforeTheClaim(t *testing.T) {
	t.Parallel()
	k := newKillScene(t, modelgatetest.Options{})
	k.start("JPINTEL_BILLING_KILL_SWITCH=1")
	k.signUp("cus_a")
	k.crash()
	if got := k.rows(`SELECT action || ' ' || status || ' ' || send_state || ' ' || attempt_count FROM partner_operations ORDER BY operation_seq`); fmt.Sprint(got) !=
		"[provision_customer pending not_sent 0 create_group pending not_sent 0]" || k.up.State().Requests != 0 {
		t.Errorf("%q, %d requests", got, k.up.State().Requests)
	}
	k.start()
	if state := k.readyOnce(); state.Requests != 3 {
		t.Errorf("%d requests", state.Requests)
	}
}

// S02: the attempt is on record, and the connection is not there yet: what it
// goes to accepts and says no word of TLS.
func TestS02KilledBeforeTheConnection(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	k := newKillScene(t, modelgatetest.Options{})
	k.start("MODELGATE_BASE_URL=https://" + silent.Addr().String())
	k.signUp("cus_a")
	procUntil(t, "the attempt is on record", func() bool { return k.operations("cus_a")[0].SendState == "maybe_sent" })
	k.crash()
	k.start()
	if state := k.readyOnce(); state.Requests != 3 || traffic(state, "create-group-").WireRequests != 1 {
		t.Errorf("%d requests, %+v", state.Requests, state.Idempotency)
	}
	if got := k.rows(`SELECT MAX(attempt_no) > 1 FROM operation_attempts JOIN partner_operations USING (operation_id) WHERE action = 'create_group'`); got[0] != "1" {
		t.Error("there was no attempt before the kill")
	}
}

// S03: half of the request's body has left.
func TestS03KilledInTheMiddleOfTheBody(t *testing.T) {
	t.Parallel()
	eachCall(t, func(t *testing.T, action, path, key string) {
		k := newKillScene(t, modelgatetest.Options{})
		g := newGate(t, gateAddress(k.up.BaseURL()))
		rule := g.next(`[A-Z]+ /v1[^ ]*`+strings.Trim(path, "^$")+` `, gateRule{half: true})
		k.start("MODELGATE_BASE_URL=" + g.url())
		k.signUp("cus_a")
		<-rule.met
		k.await(func(state modelgatetest.State) bool { return traffic(state, key).WireRequests == 1 })
		k.crash()
		k.start("MODELGATE_BASE_URL=" + g.url())
		if seen := traffic(k.readyOnce(), key); seen.WireRequests != 2 || seen.Executions != 1 || len(seen.Fingerprints) != 1 {
			t.Errorf("%+v", seen)
		}
	})
}

// S05 and S11 with a kill: the upstream has done it, and has not answered.
func TestS05KilledBeforeTheAnswer(t *testing.T) {
	t.Parallel()
	eachCall(t, func(t *testing.T, action, path, key string) {
		k := newKillScene(t, modelgatetest.Options{SecretOnReplay: modelgatetest.SecretWithinRetention}, hang(path, modelgatetest.AtAfterCommit))
		k.start()
		k.signUp("cus_a")
		k.struck(0)
		k.crash()
		k.start()
		state := k.readyOnce()
		if seen := traffic(state, key); seen.WireRequests != 2 || seen.Replays != 1 || state.Requests != 4 {
			t.Errorf("%+v, %d requests", seen, state.Requests)
		}
	})
}

// S06: the answer was read, and could not be written down yet: the file is
// somebody else's for the moment.
func TestS06KilledBeforeTheCommit(t *testing.T) {
	t.Parallel()
	eachCall(t, func(t *testing.T, action, path, key string) {
		k := newKillScene(t, modelgatetest.Options{SecretOnReplay: modelgatetest.SecretWithinRetention})
		g := newGate(t, gateAddress(k.up.BaseURL()))
		rule := g.next(`[A-Z]+ /v1[^ ]*`+strings.Trim(path, "^$")+` `, gateRule{free: make(chan struct{})})
		k.start("MODELGATE_BASE_URL=" + g.url())
		k.signUp("cus_a")
		<-rule.met
		unlock := lockFile(t, k.db)
		close(rule.free)
		procUntil(t, "the answer was read", func() bool { return k.answered(action) })
		k.kill()
		unlock()
		k.crash()
		if got := k.rows(`SELECT status || ' ' || send_state FROM partner_operations WHERE action = '` + action + `'`); got[0] != "pending maybe_sent" {
			t.Errorf("%s was written down: %q", action, got)
		}
		k.start("MODELGATE_BASE_URL=" + g.url())
		if seen := traffic(k.readyOnce(), key); seen.Replays != 1 || seen.WireRequests != 2 {
			t.Errorf("%+v", seen)
		}
	})
}

// answered reports whether the log has a success of an action's request.
func (k *killScene) answered(action string) bool {
	for line := range strings.Lines(k.out.String()) {
		if strings.Contains(line, `"operation_attempt"`) && strings.Contains(line, `"action":"`+action+`"`) && strings.Contains(line, `"outcome":"succeeded"`) {
			return true
		}
	}
	return false
}

// lockFile lets nobody else write into the file until unlock.
func lockFile(t testing.TB, path string) (unlock func()) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate&_pragma=busy_timeout(60000)")
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(tx.Rollback(), db.Close()); err != nil {
			t.Error(err)
		}
	}
}

// S07: it is done and committed, and nobody was told yet. The event goes out
// once, after the kill.
func TestS07KilledBeforeTheNotice(t *testing.T) {
	t.Parallel()
	k := newKillScene(t, modelgatetest.Options{})
	receiver := procReceive(t, nil)
	k.start("JPINTEL_WEBHOOK_GLOBAL_KILL_SWITCH=1")
	k.customer("cus_a")
	sub := k.subscribe(receiver.url, map[string]any{"events": []string{"customer.provisioned"}})
	k.signUp("cus_a")
	k.becomes("cus_a", billing.Ready)
	k.crash()
	if n := len(receiver.got()); n != 0 {
		t.Fatalf("%d deliveries before the kill", n)
	}
	k.start()
	procUntil(t, "the event has arrived", func() bool { return len(receiver.got()) > 0 })
	k.settled(sub)
	k.readyOnce()
	if got := receiver.got(); len(got) != 1 || !strings.Contains(string(got[0].Body), `"customer.provisioned"`) {
		t.Errorf("%d deliveries", len(got))
	}
}

// S08: there is nothing between the success of one child and the next: whenever
// the next one's request has left, or has not, it is there after the kill.
func TestS08KilledBetweenTwoChildren(t *testing.T) {
	t.Parallel()
	for i, c := range calls[1:] {
		t.Run("before "+c.action, func(t *testing.T) {
			t.Parallel()
			k := newKillScene(t, modelgatetest.Options{}, hang(c.path, modelgatetest.AtAccept))
			k.start()
			k.signUp("cus_a")
			k.struck(0)
			k.crash()
			want := fmt.Sprintf("%s succeeded %s pending", calls[i].action, c.action)
			if got := k.rows(`SELECT group_concat(action || ' ' || status, ' ') FROM (SELECT * FROM partner_operations ORDER BY operation_seq)`); !strings.HasSuffix(got[0], want) {
				t.Errorf("%s", got[0])
			}
			k.start()
			if seen := traffic(k.readyOnce(), c.key); seen.WireRequests != 2 || seen.Executions != 1 {
				t.Errorf("%+v", seen)
			}
		})
	}
}

// S08, at random: killed again and again while customers sign up. Whatever it was
// doing, each copy of the file is sound, and in the end there is one of each.
func TestS08KilledAtRandom(t *testing.T) {
	t.Parallel()
	kills := 12
	if testing.Short() || procRace {
		kills = 3
	}
	random := seeded(t)
	k := newKillScene(t, modelgatetest.Options{SecretOnReplay: modelgatetest.SecretWithinRetention},
		modelgatetest.Rule{Match: modelgatetest.Match{Prob: "0.2", Seed: random.Uint64()}, At: modelgatetest.AtAfterCommit, Do: "reset"},
		modelgatetest.Rule{Match: modelgatetest.Match{Prob: "0.2", Seed: random.Uint64()}, At: modelgatetest.AtAfterExecute, Do: "reset"})
	k.start()
	var customers []string
	for i := range kills {
		for j := range 4 {
			customers = append(customers, fmt.Sprintf("cus_%d_%d", i, j))
		}
		before := k.up.State().Requests
		k.signUp(customers[4*i:]...)
		after := before + random.IntN(12)
		k.await(func(state modelgatetest.State) bool { return state.Requests >= after })
		k.crash()
		k.start()
	}
	for _, id := range customers {
		k.becomes(id, billing.Ready)
	}
	k.end()
	if state := k.up.State(); len(state.Groups) != len(customers) || len(state.Keys) != len(customers) {
		t.Errorf("%d groups and %d keys for %d customers", len(state.Groups), len(state.Keys), len(customers))
	}
}

// S09: killed between the two reads of a look. It starts over, and sends nothing
// before both have come twice.
func TestS09KilledBetweenTwoReads(t *testing.T) {
	t.Parallel()
	k := newKillScene(t, modelgatetest.Options{},
		modelgatetest.Rule{Match: modelgatetest.Match{Method: "POST", PathRE: `^/groups$`}, At: modelgatetest.AtBeforeExecute, Do: "status:409 code:external_ref_conflict", Times: 1},
		hang(`^/audit-events$`, modelgatetest.AtAccept))
	k.start()
	k.signUp("cus_a")
	k.struck(1)
	k.crash()
	if got := k.rows(`SELECT status || ' ' || (SELECT COUNT(*) FROM reconcile_evidence) FROM partner_operations WHERE action = 'create_group'`); got[0] != "reconciling 0" {
		t.Errorf("%q", got)
	}
	if seen := traffic(k.up.State(), "create-group-"); seen.WireRequests != 1 {
		t.Errorf("%+v", seen)
	}
	k.start()
	if seen := traffic(k.readyOnce(), "create-group-"); seen.WireRequests != 2 {
		t.Errorf("%+v", seen)
	}
	if got := k.rows(`SELECT group_concat(surface || ' ' || verdict) FROM reconcile_evidence`); got[0] != "groups absent,audit absent,groups absent,audit absent" {
		t.Errorf("%q", got)
	}
}

// S70, with a kill: the key is there, and the answer with its secret went to the
// dead. A command has it replaced.
func TestS70KilledBeforeTheSecret(t *testing.T) {
	t.Parallel()
	k := newKillScene(t, modelgatetest.Options{}, hang(`/keys$`, modelgatetest.AtAfterCommit))
	k.start()
	k.signUp("cus_a")
	k.struck(0)
	k.crash()
	k.start()
	k.becomes("cus_a", billing.NeedsAttention)
	var queue store.Page[billing.Operation]
	k.must(k.client.admin(t.Context(), "GET", "/v1/admin/operations?status=reconciliation_needed", nil, &queue))
	if len(queue.Data) != 1 || *queue.Data[0].Phase != billing.PhaseSecretLost {
		t.Fatalf("%+v", queue.Data)
	}
	k.ops("resolve", queue.Data[0].OperationID, "--who", "aki", "--note", "its secret is lost", "--outcome", "replace_key").want(exitDone)
	k.becomes("cus_a", billing.Ready)
	k.end()
	if keys := k.up.State().Keys; len(keys) != 2 || keys[0].Status != "revoked" || keys[1].Status != "active" {
		t.Errorf("%+v", keys)
	}
}

// A backup is put back over a file that went on: nothing is sent that had been
// done in the meantime, nor made twice.
func TestARestoredFileIsLookedUpFirst(t *testing.T) {
	t.Parallel()
	k := newKillScene(t, modelgatetest.Options{SecretOnReplay: modelgatetest.SecretWithinRetention})
	k.start("JPINTEL_BILLING_KILL_SWITCH=1")
	k.signUp("cus_a")
	k.stop()
	backup, err := os.ReadFile(k.db) // nothing else: it was closed
	k.must(err)
	k.start()
	k.becomes("cus_a", billing.Ready)
	k.stop()
	k.must(os.WriteFile(k.db, backup, 0o600))
	k.restored = true
	k.ops("restored").want(exitDone)
	k.start()
	state := k.readyOnce()
	if seen := traffic(state, "create-group-"); seen.WireRequests != 1 {
		t.Errorf("it was sent again: %+v", seen)
	}
	if got := k.rows(`SELECT group_concat(surface || ' ' || verdict) FROM reconcile_evidence`); got[0] != "groups succeeded" {
		t.Errorf("%q", got)
	}
}
