package modelgatetest

import (
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
)

// docs/dev-upstream.md tells every action and station, and its examples are rules.
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/dev-upstream.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	for name := range kinds {
		if !strings.Contains(doc, "`"+name+"`") && !strings.Contains(doc, "`"+name+":") {
			t.Errorf("it does not tell %s", name)
		}
	}
	for _, at := range stations {
		if !strings.Contains(doc, "| `"+string(at)+"` |") {
			t.Errorf("it does not tell %s", at)
		}
	}
	for profile, speaks := range dialects {
		for _, word := range []string{string(profile), speaks.running, speaks.reused} {
			if !strings.Contains(doc, "`"+word+"`") {
				t.Errorf("it does not tell %s", word)
			}
		}
	}
	rules := regexp.MustCompile(`\{.*"do":.*\}`).FindAllString(doc, -1)
	for _, line := range rules {
		request := httptest.NewRequest("POST", "/__faults", strings.NewReader(line))
		if _, err := addFault(New(Options{}), request); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	if len(rules) < 5 || !strings.Contains(doc, DevToken) {
		t.Errorf("%d examples", len(rules))
	}
}
