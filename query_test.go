package main

import "testing"

// Every call refuses a query parameter that it does not have, before anything
// else that may be wrong with it.
func TestUnknownParametersAreNamed(t *testing.T) {
	s := newServer(t)
	cus := s.customer("cus_a", "paid")
	for _, r := range (&api{}).routes() {
		c := cus
		if r.who == admin {
			c = s.admin
		}
		var body any
		if r.method != "GET" && r.method != "DELETE" {
			body = `{}`
		}
		for query, detail := range map[string]string{
			"nonsense=1": "nonsense: unknown parameter",
			"Limit=1":    "Limit: unknown parameter",
			"nonsense":   "nonsense: unknown parameter",
			"a;b":        "what follows the ? is not a query",
			"%zz=1":      "what follows the ? is not a query",
		} {
			if a := c.undocumentedWith(r.method, r.path+"?"+query, body); a.status != 400 || a.body != errorBody(detail) {
				t.Errorf("%s %s?%s: %d %s, want %q", r.method, r.path, query, a.status, a.body, detail)
			}
		}
	}
	cus.undocumented("GET", listPath+"?limit=1")
	for query, detail := range map[string]string{"limit=1&limit=2": "limit: there twice", "limit=1&limit=": "limit: there twice", "types=program.created": "types: unknown parameter"} {
		if a := cus.undocumented("GET", listPath+"?"+query); a.status != 400 || a.body != errorBody(detail) {
			t.Errorf("?%s: %d %s, want %q", query, a.status, a.body, detail)
		}
	}
}
