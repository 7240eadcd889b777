package programs

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"jpintel/store"
	"jpintel/store/storetest"
	"jpintel/webhook"
)

func customer(t testing.TB, s *Service, id string) { storetest.Customer(t, s.DB, id, store.TierPaid) }

func filter(t testing.TB, text string) (f webhook.Filter) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		t.Fatal(err)
	}
	return f
}

func saveFilter(t testing.TB, s *Service, customer, text string) SavedFilter {
	t.Helper()
	got, err := s.CreateSavedFilter(t.Context(), CreateSavedFilterRequest{CustomerID: customer, Filter: filter(t, text)})
	if err != nil {
		t.Fatal(err)
	}
	return got.SavedFilter
}

func TestSavedFilters(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	created, err := s.CreateSavedFilter(t.Context(), CreateSavedFilterRequest{CustomerID: "cus_a", Filter: filter(t, `{"prefecture":["京都府","大阪府","京都府"],"authority_level":"national"}`)})
	if err != nil || created.HTTPStatus() != http.StatusCreated {
		t.Fatal(created, err)
	}
	text, err := json.Marshal(created)
	if want := fmt.Sprintf(`{"filter_id":"%s","filter":{"authority_level":"national","prefecture":["京都府","大阪府"]},"created_at":"%s"}`,
		created.FilterID, created.CreatedAt.Format("2006-01-02T15:04:05.999999999Z")); err != nil || string(text) != want {
		t.Errorf("got %s, %v; want %s", text, err, want)
	}
	second := saveFilter(t, s, "cus_a", `{"unified_id":"UNI-1"}`)
	saveFilter(t, s, "cus_b", `{"unified_id":"UNI-1"}`)

	page, err := s.ListSavedFilters(t.Context(), ListSavedFiltersRequest{CustomerID: "cus_a", PageRequest: store.PageRequest{Limit: 1}})
	if err != nil || len(page.Data) != 1 || page.Data[0].FilterID != second.FilterID || page.NextCursor == nil {
		t.Fatalf("first page %+v, %v", page, err)
	}
	page, err = s.ListSavedFilters(t.Context(), ListSavedFiltersRequest{CustomerID: "cus_a", PageRequest: store.PageRequest{Limit: 1, Cursor: *page.NextCursor}})
	if err != nil || len(page.Data) != 1 || page.Data[0].FilterID != created.FilterID || page.NextCursor != nil {
		t.Fatalf("second page %+v, %v", page, err)
	}
	if listed, _ := json.Marshal(page.Data[0]); string(listed) != string(text) {
		t.Errorf("listed %s, created %s", listed, text)
	}
	_, err = s.ListSavedFilters(t.Context(), ListSavedFiltersRequest{CustomerID: "cus_a", PageRequest: store.PageRequest{Cursor: "?"}})
	wantCode(t, err, store.CodeInvalid, "cursor")
}

func TestSavedFiltersBelongToTheirCustomer(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	customer(t, s, "cus_b")
	f := saveFilter(t, s, "cus_a", `{"prefecture":"奈良県"}`)
	for _, r := range []DeleteSavedFilterRequest{{"cus_b", f.FilterID}, {"cus_a", "flt_missing"}, {"", f.FilterID}} {
		_, err := s.DeleteSavedFilter(t.Context(), r)
		wantCode(t, err, store.CodeNotFound, r.FilterID)
	}
	page, err := s.ListSavedFilters(t.Context(), ListSavedFiltersRequest{CustomerID: "cus_b"})
	if err != nil || len(page.Data) != 0 || page.Data == nil {
		t.Errorf("another customer sees %+v, %v", page, err)
	}
	got, err := s.DeleteSavedFilter(t.Context(), DeleteSavedFilterRequest{"cus_a", f.FilterID})
	if err != nil || got.HTTPStatus() != http.StatusNoContent {
		t.Error(got, err)
	}
	_, err = s.DeleteSavedFilter(t.Context(), DeleteSavedFilterRequest{"cus_a", f.FilterID})
	wantCode(t, err, store.CodeNotFound, f.FilterID)
}

func TestSavedFiltersAreChecked(t *testing.T) {
	s := newService(t)
	customer(t, s, "cus_a")
	for _, c := range []struct{ text, part string }{
		{`null`, "filter"},
		{`{}`, "filter"},
		{`{"year":"2026"}`, `"year"`},
		{`{"prefecture":[]}`, "prefecture"},
		{`{"prefecture":""}`, "prefecture"},
	} {
		_, err := s.CreateSavedFilter(t.Context(), CreateSavedFilterRequest{CustomerID: "cus_a", Filter: filter(t, c.text)})
		wantCode(t, err, store.CodeInvalid, c.part)
	}
	exec(t, s, fmt.Sprintf(`
		WITH RECURSIVE n (i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
		INSERT INTO saved_filters (filter_id, customer_id, filter, created_at_ms) SELECT 'flt_' || i, 'cus_a', '{}', 0 FROM n`, maxFilters))
	saveFilter(t, s, "cus_a", `{"prefecture":"奈良県"}`)
	_, err := s.CreateSavedFilter(t.Context(), CreateSavedFilterRequest{CustomerID: "cus_a", Filter: filter(t, `{"prefecture":"奈良県"}`)})
	wantCode(t, err, store.CodeConflict, "100")
}
