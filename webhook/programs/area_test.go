package programs

import "testing"

func TestAreas(t *testing.T) {
	if len(prefectureNames) != 47 {
		t.Fatalf("%d prefectures", len(prefectureNames))
	}
	for _, c := range []struct {
		joined, one, level string
		n                  int
	}{
		{"", "", "", 0},
		{"全国", "", levelNational, 1},
		{"奈良県", "奈良県", levelPrefecture, 1},
		{"近畿地方", "", "", 1},
		{"大阪府 / 京都府", "", "", 2},
		{"大阪府/京都府", "", "", 2},
		{"全国 / 宮崎県", "", levelNational, 2},
		{"全国 / 北海道 / 青森県 / 東北地方", "", levelNational, 4},
		{" 大阪府 /　大阪府/ / ", "大阪府", levelPrefecture, 1},
		{"奈良", "", "", 1},
	} {
		area := splitArea(c.joined)
		if len(area) != c.n || onePrefecture(area) != c.one || levelOf(area) != c.level {
			t.Errorf("%q: %q, one %q, level %q; want %d, %q, %q", c.joined, area, onePrefecture(area), levelOf(area), c.n, c.one, c.level)
		}
	}
}
