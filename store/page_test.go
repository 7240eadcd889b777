package store_test

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"jpintel/store"
)

func TestPagesCoverAListOnce(t *testing.T) {
	list := []int64{3, 5, 8, 9, 20, 21, 22} // positions, as of rows with gaps
	for _, limit := range []int{1, 2, 3, 6, 7, 8, 100} {
		var got []int64
		pages := 0
		for r := (store.PageRequest{Limit: limit}); ; pages++ {
			after, rows, err := r.Position()
			if err != nil {
				t.Fatal(err)
			}
			found := []int64{}
			for _, p := range list {
				if p > after && len(found) < rows {
					found = append(found, p)
				}
			}
			page := store.NewPage(found, rows, func(p int64) int64 { return p })
			if len(page.Data) > limit || page.Data == nil {
				t.Errorf("limit %d: page %v", limit, page.Data)
			}
			got = append(got, page.Data...)
			if page.NextCursor == nil {
				break
			}
			r.Cursor = *page.NextCursor
		}
		if want := (len(list) - 1) / limit; !slices.Equal(got, list) || pages != want {
			t.Errorf("limit %d: got %v, %d pages follow the first, want %d", limit, got, pages, want)
		}
	}
}

func TestPageAsJSON(t *testing.T) {
	cursor := "NQ"
	for want, page := range map[string]store.Page[int]{
		`{"data":[],"next_cursor":null}`:  store.NewPage([]int{}, 51, func(int) int64 { return 0 }),
		`{"data":[5],"next_cursor":"NQ"}`: {Data: []int{5}, NextCursor: &cursor},
	} {
		if got, err := json.Marshal(page); err != nil || string(got) != want {
			t.Errorf("got %s, %v, want %s", got, err, want)
		}
	}
}

func TestPageRequest(t *testing.T) {
	encode := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	for _, test := range []struct {
		name        string
		request     store.PageRequest
		after, rows int64
		field       string // of the error
	}{
		{"nothing", store.PageRequest{}, 0, store.DefaultLimit + 1, ""},
		{"smallest limit", store.PageRequest{Limit: 1}, 0, 2, ""},
		{"greatest limit", store.PageRequest{Limit: store.MaxLimit}, 0, store.MaxLimit + 1, ""},
		{"limit too great", store.PageRequest{Limit: store.MaxLimit + 1}, 0, 0, "limit"},
		{"negative limit", store.PageRequest{Limit: -1}, 0, 0, "limit"},
		{"cursor", store.PageRequest{Cursor: encode("41")}, 41, store.DefaultLimit + 1, ""},
		{"zero", store.PageRequest{Cursor: encode("0")}, 0, 0, "cursor"},
		{"negative", store.PageRequest{Cursor: encode("-5")}, 0, 0, "cursor"},
		{"no number", store.PageRequest{Cursor: encode("five")}, 0, 0, "cursor"},
		{"empty number", store.PageRequest{Cursor: "="}, 0, 0, "cursor"},
		{"not encoded", store.PageRequest{Cursor: "41"}, 0, 0, "cursor"},
		{"padded", store.PageRequest{Cursor: base64.URLEncoding.EncodeToString([]byte("41"))}, 0, 0, "cursor"},
		{"beyond int64", store.PageRequest{Cursor: encode("9223372036854775808")}, 0, 0, "cursor"},
		{"SQL", store.PageRequest{Cursor: "1; DROP TABLE customers"}, 0, 0, "cursor"},
		{"long", store.PageRequest{Cursor: strings.Repeat("A", 10_000)}, 0, 0, "cursor"},
	} {
		after, rows, err := test.request.Position()
		if after != test.after || int64(rows) != test.rows {
			t.Errorf("%s: after %d, %d rows, want %d and %d", test.name, after, rows, test.after, test.rows)
		}
		if test.field == "" {
			if err != nil {
				t.Errorf("%s: %v", test.name, err)
			}
		} else if store.CodeOf(err) != store.CodeInvalid || !strings.HasPrefix(err.Error(), test.field+": ") {
			t.Errorf("%s: %v, want code invalid and the name of %s", test.name, err, test.field)
		}
	}
}
