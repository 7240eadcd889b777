package main

import (
	"net/http"
	"strings"
	"testing"

	"jpintel/billing"
	"jpintel/billing/modelgatetest"
	"jpintel/store"
)

// changed is what somebody changes at the upstream by hand.
func changed(t *testing.T, up *modelgatetest.Upstream, method, path, body string) {
	t.Helper()
	req, err := http.NewRequest(method, up.BaseURL()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+modelgatetest.DevToken)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", "by-hand"+path)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode > 299 {
		t.Fatalf("%s %s: %s", method, path, resp.Status)
	}
}

// S75 through the API: a sweep that is asked for, what it finds, and somebody who
// knows of it; the same by a command beside the server.
func TestS75FindingsThroughTheAPI(t *testing.T) {
	up := modelgatetest.New(modelgatetest.Options{}).Start(t)
	s := newServer(t, "MODELGATE_BASE_URL="+up.BaseURL(), "MODELGATE_API_KEY="+modelgatetest.DevToken, "JPINTEL_WEBHOOK_TICK=10ms")
	s.admin.with("Idempotency-Key", "click-1").call("POST", "/v1/admin/customers", signUpBody, 202)
	c := billed(t, s, billing.Ready)
	for _, sweep := range get[store.Page[billing.Sweep]](s.admin, "/v1/admin/sweeps").Data {
		if sweep.StartedAt != nil || (sweep.NextAt == nil) != (sweep.Name == billing.SweepEvents) {
			t.Errorf("%+v", sweep)
		}
	}
	changed(t, up, "PATCH", "/groups/"+*c.GroupID, `{"status":"frozen"}`)
	s.admin.call("POST", "/v1/admin/sweeps", `{"sweep":"accounts"}`, 202)
	var found store.Page[billing.Finding]
	eventually(t, func() bool {
		found = get[store.Page[billing.Finding]](s.admin, "/v1/admin/findings?customer=cus_a&kind=state_differs")
		return len(found.Data) == 1
	})
	if f := found.Data[0]; f.Subject != *c.GroupID || string(f.Detail) != `{"here":"active","there":"frozen"}` || f.State != "open" {
		t.Errorf("%+v", f)
	}
	path := "/v1/admin/findings/" + found.Data[0].FindingID + "/acknowledge"
	s.admin.refused("POST", path, `{"who":"aki"}`, 400, "note: required, at most 2000 bytes")
	if f := decode[billing.Finding](t, s.admin.call("POST", path, `{"who":"aki","note":"it was me"}`, 200)); f.State != "acknowledged" || *f.AcknowledgedBy != "aki" {
		t.Errorf("%+v", f)
	}
	s.admin.refused("POST", path, `{"who":"aki","note":"again"}`, 409, "the finding is acknowledged already")
	s.admin.refused("POST", "/v1/admin/findings/fnd_none/acknowledge", `{"who":"aki","note":"again"}`, 404, "finding fnd_none not found")
	s.admin.refused("GET", "/v1/admin/findings?state=closed", nil, 400, "state: want open, acknowledged, resolved or all")
	s.admin.refused("POST", "/v1/admin/sweeps", `{"sweep":"all"}`, 400, "sweep: want audit, accounts, events, or nothing for all of them")
	if left := get[store.Page[billing.Finding]](s.admin, "/v1/admin/findings?state=open"); len(left.Data) != 0 {
		t.Errorf("%+v", left)
	}

	eventually(t, func() bool {
		return !strings.Contains(s.command("ops", "sweep", "--status", "--json"), `"running":true`)
	})
	if shown := s.command("ops", "sweep", "audit", "--json"); !strings.Contains(shown, `"sweep":"audit"`) || !strings.Contains(shown, `"checked":4`) {
		t.Errorf("ops sweep: %s", shown)
	}
	if shown := s.command("ops", "findings", "--json"); !strings.Contains(shown, `"foreign_change"`) || !strings.Contains(shown, `"group.update"`) {
		t.Errorf("ops findings: %s", shown)
	}
	id := get[store.Page[billing.Finding]](s.admin, "/v1/admin/findings?kind=foreign_change").Data[0].FindingID
	s.command("ops", "acknowledge", id, "--who", "aki", "--note", "it was me")
	if all := get[store.Page[billing.Finding]](s.admin, "/v1/admin/findings?state=acknowledged"); len(all.Data) != 2 {
		t.Errorf("%+v", all)
	}
}
