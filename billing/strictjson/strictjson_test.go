package strictjson

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	deep := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	for body, ok := range map[string]bool{
		`{}`: true, ` {"a":[1,{"b":null}],"c":"d"} `: true, `{"a":1,"b":1}`: true,
		`{"a":1,"a":1}`: false, `{"a":1,"A":1}`: false, `{"k":1,"` + "\u212a" + `":1}`: false, `{"x":[{"a":1,"A":1}]}`: false,
		`{"metadata":{"a":1,"A":1}}`: true, `{"x":{"metadata":{"a":{"b":1,"B":2}}}}`: true, `{"metadata":{"a":1,"a":1}}`: false,
		`{"metadata":1,"Metadata":2}`: false, `{"metadata":{"b":1,"B":1},"c":{"b":1,"B":1}}`: false,
		`{}{}`: false, `{} x`: false, `[]`: false, `"{}"`: false, `{`: false, ``: false, `{"a":1,}`: false, `{"a" 1}`: false, `{a:1}`: false,
		"{\"a\":\"\xff\"}": false, deep(maxDepth): true, deep(maxDepth + 1): false,
	} {
		if _, err := Parse([]byte(body), "metadata"); (err == nil) != ok {
			t.Errorf("%.60s: %v", body, err)
		}
	}
	if _, err := Parse([]byte(`{"metadata":{"a":1,"A":1}}`)); err == nil {
		t.Error("names are free that nobody has set free")
	}
}

func FuzzParse(f *testing.F) {
	for _, body := range []string{`{"a":[1,{"b":null}]}`, `{"K":1,"k":2}`, strings.Repeat("[", 100), `{"a":1}{"a":1}`, `{"metadata":{"a":1e400,"A":"é"}}`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := Parse(body, "metadata")
		if err != nil {
			return
		}
		text, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Parse(text, "metadata"); err != nil || !reflect.DeepEqual(o, again) {
			t.Fatalf("%s became %s: %v", body, text, err)
		}
	})
}
