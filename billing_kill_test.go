package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"jpintel/billing"
	"jpintel/billing/modelgatetest"
)

// S06 and S11, with a real kill: the server dies when the upstream has done what
// it was asked for and nobody here knows. Whatever it was, there is one of it.
func TestS06AServerKilledBeforeTheAnswer(t *testing.T) {
	for what, path := range map[string]string{"group": `^/groups$`, "key": `/keys$`, "limit": `/limits$`} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			up := modelgatetest.New(modelgatetest.Options{SecretOnReplay: modelgatetest.SecretWithinRetention}).Start(t)
			err := up.AddFaults(modelgatetest.Rule{Match: modelgatetest.Match{PathRE: path, Nth: 1}, At: modelgatetest.AtAfterCommit, Do: "hang"})
			if err != nil {
				t.Fatal(err)
			}
			db := t.TempDir() + "/jpintel.db"
			environment := []string{"MODELGATE_BASE_URL=" + up.BaseURL(), "MODELGATE_API_KEY=" + modelgatetest.DevToken, "MODELGATE_MODELS=small", "JPINTEL_BILLING_RETRY_BASE=10ms"}
			ctx, cancel := context.WithTimeout(t.Context(), procPatience)
			defer cancel()
			s := procServe(t, db, environment...)
			s.signUp()
			if err := up.Await(ctx, func(state modelgatetest.State) bool { return state.Faults[0].Hits == 1 }); err != nil {
				t.Fatal(err)
			}
			s.kill()
			s = procServeAs(t, s.client, db, environment...)
			procUntil(t, "the customer is ready", func() bool {
				var c billing.Customer
				s.must(s.client.admin(ctx, "GET", "/v1/admin/customers/cus_a", nil, &c))
				return c.Status != nil && *c.Status == billing.Ready
			})
			s.stop()
			state := up.State()
			if len(state.Groups) != 1 || len(state.Keys) != 1 || len(state.Audit) != 3 || state.Limits[state.Groups[0].ID].SpendLimit != "100.00" || len(state.ReusedKeys()) > 0 {
				t.Errorf("groups %+v, keys %+v, audit %+v", state.Groups, state.Keys, state.Audit)
			}
			replays := 0
			for _, traffic := range state.Idempotency {
				replays += traffic.Replays
			}
			if replays != 1 || state.Requests != 4 {
				t.Errorf("%d replays, %d requests", replays, state.Requests)
			}
		})
	}
}

// signUp has cus_a provisioned.
func (s *procServer) signUp() {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), "POST", s.client.base+"/v1/admin/customers", strings.NewReader(signUpBody))
	s.must(err)
	req.Header.Set("Authorization", "Bearer "+procToken)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", "click-1")
	resp, err := (&http.Client{Timeout: time.Minute}).Do(req)
	s.must(err)
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusAccepted {
		s.t.Fatalf("%d %s (%v)", resp.StatusCode, text, err)
	}
}
