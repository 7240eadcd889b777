package store_test
import ("testing";"path/filepath")
func TestRaceCreate(t *testing.T) {
	for r := range 100 {
		path := filepath.Join(t.TempDir(), "x.db")
		var ps []*process
		for range 3 { ps = append(ps, start(t, "create", path)) }
		for _, p := range ps { if lines, err := p.rest(); err != nil { t.Error(r, lines, err) } }
	}
}
