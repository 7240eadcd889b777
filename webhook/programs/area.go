package programs

import (
	"slices"
	"strings"
)

// nationwide is the area that is the whole country.
const nationwide = "全国"

// Authority levels: whose program it is.
const (
	levelNational     = "national"
	levelPrefecture   = "prefecture"
	levelMunicipality = "municipality"
)

var levels = []string{levelNational, levelPrefecture, levelMunicipality}

// prefectureNames are the 47. Areas hold regions too (近畿地方), which are none.
var prefectureNames = func() map[string]bool {
	names := map[string]bool{}
	for _, name := range strings.Fields(`
		北海道 青森県 岩手県 宮城県 秋田県 山形県 福島県 茨城県 栃木県 群馬県 埼玉県 千葉県
		東京都 神奈川県 新潟県 富山県 石川県 福井県 山梨県 長野県 岐阜県 静岡県 愛知県 三重県
		滋賀県 京都府 大阪府 兵庫県 奈良県 和歌山県 鳥取県 島根県 岡山県 広島県 山口県 徳島県
		香川県 愛媛県 高知県 福岡県 佐賀県 長崎県 熊本県 大分県 宮崎県 鹿児島県 沖縄県`) {
		names[name] = true
	}
	return names
}()

// onePrefecture returns the one prefecture of an area, or "" where it is none,
// a region, the country, or more than one of these.
func onePrefecture(area []string) string {
	if len(area) != 1 || !prefectureNames[area[0]] {
		return ""
	}
	return area[0]
}

// levelOf derives the authority level from the area of a program whose source
// does not tell: "" where the area does not either.
func levelOf(area []string) string {
	switch {
	case slices.Contains(area, nationwide):
		return levelNational
	case onePrefecture(area) != "":
		return levelPrefecture
	}
	return ""
}
