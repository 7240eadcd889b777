package main

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"jpintel/billing"
	"jpintel/billing/billingtest"
	"jpintel/billing/modelgatetest"
	"jpintel/store"
	"jpintel/store/storetest"
)

// S40: sixteen workers in the server, and commands beside it, on one file, while
// dozens of customers sign up, and have much changed at once, at an upstream that
// fails in many ways.
func TestS40CommandsBesideTheServer(t *testing.T) {
	t.Parallel()
	customers := 48
	if testing.Short() || procRace {
		customers = 12
	}
	random := seeded(t)
	fault := func(at modelgatetest.At, do string) modelgatetest.Rule {
		return modelgatetest.Rule{Match: modelgatetest.Match{Prob: "0.12", Seed: random.Uint64()}, At: at, Do: do}
	}
	k := newKillScene(t, modelgatetest.Options{SecretOnReplay: modelgatetest.SecretWithinRetention},
		fault(modelgatetest.AtBeforeAuth, "status:503 retry_after:1"), fault(modelgatetest.AtBeforeExecute, "status:500"), fault(modelgatetest.AtAfterExecute, "reset"),
		fault(modelgatetest.AtAfterCommit, "reset"), fault(modelgatetest.AtAfterCommit, "delay:50ms"), fault(modelgatetest.AtOnResponse, "truncate:30"),
		fault(modelgatetest.AtBeforeExecute, "delay:50ms"))
	k.start("JPINTEL_BILLING_WORKERS=16")
	for i := range customers {
		k.signUp(fmt.Sprint("cus_", i))
	}
	commands := k.besides(t, random)
	for i := range customers {
		k.change(fmt.Sprint("cus_", i))
	}
	commands += k.besides(t, random)
	k.end()
	k.look(func(db *store.DB) { k.oneAtATime(db) })
	state := k.up.State()
	if len(state.Groups) != customers || len(state.Keys) != 3*customers {
		t.Errorf("%d groups and %d keys for %d customers", len(state.Groups), len(state.Keys), customers)
	}
	for group, limits := range state.Limits {
		if limits.SpendLimit != "300.00" {
			t.Errorf("the limit of %s is %s", group, limits.SpendLimit)
		}
	}
	t.Logf("%d commands beside %d requests", commands, state.Requests)
}

// change has much of a customer changed at once.
func (k *killScene) change(customer string) {
	k.t.Helper()
	path := "/v1/admin/customers/" + customer
	for i, call := range []struct{ what, body string }{
		{"/limit", `{"spend_limit":"250.00","approved_by":"aki"}`}, {"/limit", `{"spend_limit":"300.00","approved_by":"aki"}`},
		{"/model-keys", `{"action":"create","purpose":"a"}`}, {"/model-keys", `{"action":"create","purpose":"b"}`},
	} {
		k.must(k.client.adminOnce(k.t.Context(), fmt.Sprint(customer, i), path+call.what, json.RawMessage(call.body), nil))
	}
}

// besides runs commands about what is open until nothing is, and says how many.
func (k *killScene) besides(t *testing.T, random *rand.Rand) (commands int) {
	t.Helper()
	for open := k.open(); len(open) > 0; open = k.open() {
		one, other := open[random.IntN(len(open))], open[random.IntN(len(open))]
		for _, p := range []*proc{k.beside("reconcile", one.OperationID), k.beside("retry", other.OperationID), k.beside("reconcile", other.OperationID)} {
			if commands++; p.wait() != exitDone && !regexp.MustCompile("the operation has ended|is being worked on").MatchString(p.err.String()) {
				t.Errorf("%s: %s", p.name, p.err)
			}
		}
	}
	return commands
}

// oneAtATime asserts that no customer had two requests under way at a time.
func (k *killScene) oneAtATime(db *store.DB) {
	k.t.Helper()
	crashRows(k.t, db, `
		SELECT a.operation_id || ' ' || a.attempt_no FROM operation_attempts a JOIN partner_operations oa ON oa.operation_id = a.operation_id
		JOIN partner_operations ob ON ob.customer_id = oa.customer_id JOIN operation_attempts b ON b.operation_id = ob.operation_id
		WHERE (a.operation_id <> b.operation_id OR a.attempt_no <> b.attempt_no) AND a.started_at_ms < b.started_at_ms AND b.started_at_ms < a.finished_at_ms`,
		func(scan func(...any) error) error {
			var attempt string
			err := scan(&attempt)
			k.t.Errorf("there was another request of this customer's during attempt %s", attempt)
			return err
		})
}

// open are some operations that go on by themselves.
func (k *killScene) open() (all []billing.Operation) {
	k.t.Helper()
	for _, status := range []billing.Status{billing.Pending, billing.FailedRetryable, billing.Reconciling} {
		var page store.Page[billing.Operation]
		k.must(k.client.admin(k.t.Context(), "GET", "/v1/admin/operations?limit=100&status="+string(status), nil, &page))
		for _, o := range page.Data {
			if o.Action != billing.ProvisionCustomer {
				all = append(all, o)
			}
		}
	}
	return all
}

// beside starts a command beside the server.
func (k *killScene) beside(command, id string) *proc {
	k.t.Helper()
	return procStart(k.t, procCommand([]string{"ops", command, id, "--who", "aki", "--note", "now"}, append(procEnv(k.db), k.env()...)...), nil)
}

var secretForm = regexp.MustCompile(`mg_[a-z0-9]{20,}`)

// S71: after everything that can happen to a secret, it is nowhere in the clear
// but in the one answer that reveals it.
func TestS71NoSecretAnywhere(t *testing.T) {
	t.Parallel()
	k := newKillScene(t, modelgatetest.Options{})
	g := newGate(t, gateAddress(k.up.BaseURL()))
	const create = `POST /v1/groups/[^/]+/keys `
	k.start("MODELGATE_BASE_URL=" + g.url())
	customers := []string{"cus_a"}
	k.signUp("cus_a")
	k.reveal(k.becomes("cus_a", billing.Ready))

	// Failures that repeat the secret, in every writing.
	for name, write := range map[string]func(string) string{
		"plain": func(s string) string { return "the secret " + s }, "quoted": func(s string) string { return `{\"secret\":\"` + s + `\"}` },
		"base64": func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }, "hex": func(s string) string { return hex.EncodeToString([]byte(s)) },
		"percent": func(s string) string { return strings.ReplaceAll(fmt.Sprintf("% X", "_"+s), " ", "%") }, "token": func(s string) string { return s + " Bearer " + modelgatetest.DevToken },
	} {
		customer := "cus_" + name
		g.next(create, gateRule{change: gateFailure(secretForm, write)})
		k.signUp(customer)
		k.becomes(customer, billing.NeedsAttention)
		k.look(nil) // its failure is in the write-ahead log yet
		parent := k.operations(customer)[len(k.operations(customer))-1]
		k.ops("resolve", parent.OperationID, "--who", "aki", "--note", "its secret is lost", "--outcome", "replace_key").want(exitDone)
		k.becomes(customer, billing.Ready)
		customers = append(customers, customer)
	}

	// An answer that comes when the lease is lost.
	rule := g.next(create, gateRule{free: make(chan struct{})})
	k.signUp("cus_late")
	<-rule.met
	k.exec(`UPDATE partner_operations SET lock_token = lock_token + 1, locked_by = 'boot_other/cli', locked_until_ms = $1 WHERE action = 'create_key' AND customer_id = 'cus_late'`, time.Now().Add(time.Minute).UnixMilli())
	close(rule.free)
	procUntil(t, "the answer was kept", func() bool { return k.out.contains("operation_lease_lost") })
	k.crash()
	if n := k.rows(`SELECT COUNT(*) FROM late_results WHERE read_at_ms IS NULL`); n[0] != "1" {
		t.Errorf("%s answers were kept", n[0])
	}
	k.exec(`UPDATE partner_operations SET locked_until_ms = 0 WHERE locked_by = 'boot_other/cli'`)
	k.start("MODELGATE_BASE_URL=" + g.url())
	customers = append(customers, "cus_late")
	k.reveal(k.becomes("cus_late", billing.Ready))

	// A key in place of a key.
	k.must(k.client.adminOnce(t.Context(), "rotate-1", "/v1/admin/customers/cus_a/model-keys", map[string]any{"action": "rotate"}, nil))
	procUntil(t, "there is another key", func() bool {
		c := k.becomes("cus_a", billing.Ready)
		return len(c.Keys) == 2 && c.Keys[1].SecretAvailable
	})
	k.reveal(k.becomes("cus_a", billing.Ready))

	for _, customer := range customers {
		k.keep("/v1/admin/customers/" + customer)
		k.keep("/v1/admin/operations?customer=" + customer)
		for _, o := range k.operations(customer) {
			k.keep("/v1/admin/operations/" + o.OperationID)
			if o.Action == billing.CreateKey {
				k.ops("show", o.OperationID).want(exitDone)
				k.ops("show", o.OperationID, "--json").want(exitDone)
			}
		}
	}
	k.ops("list").want(exitDone)
	k.crash() // the write-ahead log is there too
	k.start()
	k.end()
	if n := len(k.up.Secrets()); n != 2+2*6+2 { // the token, one each, and those in place of another
		t.Errorf("%d secrets", n)
	}
}

// keep reads an answer for the secrets to be looked for.
func (k *killScene) keep(path string) {
	k.t.Helper()
	var text json.RawMessage
	k.must(k.client.admin(k.t.Context(), "GET", path, nil, &text))
	k.said[path] = string(text)
}

// reveal reads the newest key's secret, the one time that it is shown.
func (k *killScene) reveal(c billing.Customer) {
	k.t.Helper()
	id := c.Keys[len(c.Keys)-1].KeyID
	var answer billing.Revealed
	k.must(k.client.adminOnce(k.t.Context(), "reveal-"+id, "/v1/admin/model-keys/"+id+"/reveal", nil, &answer))
	if !secretForm.MatchString(answer.Secret) {
		k.t.Errorf("%s has the secret %q", id, answer.Secret)
	}
	err := k.client.adminOnce(k.t.Context(), "again-"+id, "/v1/admin/model-keys/"+id+"/reveal", nil, nil)
	if err == nil || !strings.Contains(err.Error(), "410") {
		k.t.Errorf("a second time: %v", err)
		return
	}
	k.said["the refusal of "+id] = err.Error()
	billingtest.NoSecrets(k.t, []string{answer.Secret}, k.said)
}

// exec changes the file beside the server, as a command would.
func (k *killScene) exec(query string, args ...any) {
	k.t.Helper()
	db, err := store.Open(k.t.Context(), k.db, store.Options{Keys: storetest.Keys(k.t)})
	k.must(err)
	defer db.Close()
	k.must(db.Write(k.t.Context(), func(tx *store.Tx) error {
		_, err := tx.Exec(query, args...)
		return err
	}))
}
