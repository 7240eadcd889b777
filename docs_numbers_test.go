package main

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"jpintel/billing/metering"
	"jpintel/webhook"
)

// docsClaim is a number that a document tells: its text has to have these words,
// and what stands in the place of … has to be what the program says, wherever it
// has them.
type docsClaim struct{ file, words, want string }

// docsClaims are all of them.
func docsClaims(t *testing.T) []docsClaim {
	constant := func(name string) string { return docsWords(secConstant(t, "webhook", name)) }
	variable := func(name string) string { return docsWords(docsDefault(t, name)) }
	schedule := docsSchedule(t)
	connect, answer, total := constant("connectTimeout"), constant("answerTimeout"), docsSum(t, constant("connectTimeout"), constant("answerTimeout"))
	header, read, kept, data := constant("maxHeader"), constant("maxAnswer"), docsWords(secConstant(t, "webhook", "maxExcerpt"))+" bytes", constant("maxData")
	tolerance, streak, subscriptions, secrets := constant("Tolerance"), constant("maxStreak"), constant("maxSubscriptions"), constant("maxOldSecrets")
	later, jitter := constant("maxRetryAfter"), docsPercent(t, secConstant(t, "webhook", "jitter"))
	daily, dead, rate, together := variable("JPINTEL_WEBHOOK_DAILY_CAP"), variable("JPINTEL_WEBHOOK_DEAD_LETTER_LIMIT"), variable("JPINTEL_WEBHOOK_RATE"), variable("JPINTEL_WEBHOOK_ENDPOINT_CONCURRENCY")
	grace, retention, events, all := variable("JPINTEL_WEBHOOK_ROTATION_GRACE"), variable("JPINTEL_WEBHOOK_RETENTION"), variable("JPINTEL_EVENT_RETENTION"), variable("JPINTEL_WEBHOOK_DISPATCH_CONCURRENCY")
	moneyForm := dataSchema(t, webhook.TypeCreditAdjustmentPosted).Properties["amount"].Value.Pattern
	digits := docsDigits(t, moneyForm)
	ports := strings.ReplaceAll(docsDefault(t, "JPINTEL_WEBHOOK_PORTS"), ",", " or ")

	const contract, guide, terms, money, kept30, volumes, verify, addresses, reference = "docs/delivery-contract.md", "docs/integration-guide.md", "docs/terms-webhooks.md",
		"docs/money.md", "docs/retention.md", "docs/volumes.md", "docs/verify/README.md", "docs/sending-addresses.md", "docs/api-reference.md"
	const usage = "docs/usage.md"
	return []docsClaim{
		{contract, `is more than … off`, tolerance},
		{contract, "`data` has at most ….", data},
		{contract, `name look-up, connection and TLS handshake | … together`, connect},
		{contract, `to the end of your answer | … |`, answer},
		{contract, `in all | … |`, total},
		{contract, `headers of your answer | … |`, header},
		{contract, `body of your answer | … are read`, read},
		{contract, `the first … are kept and shown`, kept},
		{contract, `attempt later, by at most ….`, later},
		{contract, `the next ones follow … later, each`, schedule.waits},
		{contract, `each ± …, so`, jitter},
		{contract, `%, so … attempts in about`, schedule.attempts},
		{contract, `attempts in about ….`, schedule.total},
		{contract, `active subscriptions | … |`, subscriptions},
		{contract, `requests to one URL of a customer | … a second`, rate},
		{contract, `requests at a time to one subscription | … |`, together},
		{contract, `attempts of a customer in a day | … |`, daily},
		{contract, `(the streak) | … |`, streak},
		{contract, "`4xx_streak` | … failures in a row", streak},
		{contract, `since it was last enabled | … |`, dead},
		{contract, `replaced secrets that still sign | … |`, secrets},
		{contract, `goes on signing for … beside`, grace},
		{contract, `with their attempts | … |`, retention},
		{contract, `events in the feed | … |`, events},
		{contract, `id can come again for …:`, events},
		{contract, `by default …)`, docsDefault(t, "JPINTEL_TIMEZONE")},

		{guide, `is more than … off`, tolerance},
		{guide, `You have …, and should`, answer},
		{guide, `feed, which is ….`, events},
		{guide, `ids are kept for … - [ ]`, events},
		{guide, `on port ….`, ports},
		{guide, `one with the old, for ….`, grace},
		{guide, `retries go on for about ….`, schedule.total},
		{guide, "lead to `http://…/`", docsListen},

		{terms, `in the feed for ….`, events},
		{terms, `イベントは … 日間`, strings.TrimSuffix(events, " days")},
		{terms, `daily cap of … delivery attempts`, daily},
		{terms, `1 日 … 回の配信試行`, daily},

		{money, "The form is `…`", moneyForm},
		{money, `at most … digits before`, digits[0]},
		{money, `the point and … after it`, digits[1]},

		{kept30, "`dead_letter`) with their attempts | … after they finished", retention},
		{kept30, `events, and so the feed | …, and`, events},
		{kept30, `to models, in short | …, and`, docsDays(metering.KeepRequests)},
		{kept30, `your answers (…)`, kept},
		{kept30, `a pass every …,`, constant("retainEvery")},
		{kept30, `about … after the first attempt`, schedule.total},
		{kept30, `look at the feed | … after the event was committed`, events},
		{kept30, `kept: … after it last finished`, retention},
		{kept30, `ids **at least …**`, events},
		{kept30, `itself, … longer`, retention},

		{usage, `The last … are read`, docsWords(secConstant(t, "billing", "usageOverlap"))},
		{usage, `a day the last … are read`, docsDays(metering.KeepRequests / 2)},
		{usage, `turn reads … pages`, secConstant(t, "billing", "usagePages")},
		{usage, "`JPINTEL_WEBHOOK_ATTEMPT_PRICE`, … yen", docsDefault(t, "JPINTEL_WEBHOOK_ATTEMPT_PRICE")},

		{volumes, "`data` has at most …;", data},
		{volumes, "largest `data` of … it", data},
		{volumes, `daily cap: … attempts`, daily},
		{volumes, `md). With … of deliveries`, retention},
		{volumes, `deliveries and … of events, the file`, events},

		{verify, `is more than … off`, tolerance},

		{addresses, `at most … of data`, data},
		{addresses, `up to … requests at a time`, together},
		{addresses, `at a time and … a second`, rate},
		{addresses, `time | … to connect`, connect},
		{addresses, `to connect, then … for your answer`, answer},
		{addresses, `far below (… requests in flight, in all)`, all},
		{addresses, `ports | …, no others`, strings.ReplaceAll(ports, " or ", " and ")},

		{reference, `You may have … active`, subscriptions},
		{reference, `One of: you have … active`, subscriptions},
		{reference, `port … (see`, ports},
		{reference, `The first … of the answer's body`, kept},
		{reference, `objects in UTF-8, at most … where`, docsWords(secConstant(t, "main", "maxBody"))},
		{reference, `The body has more than …. |`, docsWords(secConstant(t, "main", "maxBody"))},
		{reference, `| More than … of body`, constant("maxPublishBody")},
		{reference, "or more than … of `data`", data},
		{reference, "`409` | … replaced secrets are still valid", strings.ToUpper(docsCount(t, secrets)[:1]) + docsCount(t, secrets)[1:]},
		{reference, `a time that is more than … off`, strings.Replace(tolerance, "5", "five", 1)},
	}
}

// docsListen is where jpintel listen listens.
var docsListen = func() string {
	field, _ := reflect.TypeFor[listenCmd]().FieldByName("Addr")
	return field.Tag.Get("default")
}()

// docsDefault is a variable's default.
func docsDefault(t *testing.T, name string) string {
	t.Helper()
	for _, f := range configFields() {
		if f.name == name && f.byDefault != "" {
			return f.byDefault
		}
	}
	t.Fatalf("%s has no default", name)
	return ""
}

var docsSpan = regexp.MustCompile(`^(\d+) ?(s|min|m|h|d)$`)

// docsWords writes a constant or a default as documents do: 3 seconds, 10,000.
func docsWords(value string) string {
	if span := docsSpan.FindStringSubmatch(value); span != nil {
		unit := map[string]string{"s": "second", "min": "minute", "m": "minute", "h": "hour", "d": "day"}[span[2]]
		if span[1] != "1" {
			unit += "s"
		}
		return span[1] + " " + unit
	}
	if n, err := strconv.Atoi(value); err == nil && n >= 1000 {
		return fmt.Sprintf("%d,%03d", n/1000, n%1000)
	}
	return value
}

// docsDays writes a time in days.
func docsDays(d time.Duration) string { return fmt.Sprintf("%d days", d/(24*time.Hour)) }

// docsSum adds two spans in seconds.
func docsSum(t *testing.T, a, b string) string {
	t.Helper()
	var x, y int
	if _, err := fmt.Sscanf(a+" "+b, "%d seconds %d seconds", &x, &y); err != nil {
		t.Fatalf("%s, %s: %v", a, b, err)
	}
	return fmt.Sprintf("%d seconds", x+y)
}

func docsPercent(t *testing.T, share string) string {
	t.Helper()
	f, err := strconv.ParseFloat(share, 64)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%v %%", math.Round(100*f))
}

// docsCount writes a small number as a word.
func docsCount(t *testing.T, n string) string {
	t.Helper()
	words := []string{"no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"}
	i, err := strconv.Atoi(n)
	if err != nil || i >= len(words) {
		t.Fatalf("there is no word for %s", n)
	}
	return words[i]
}

// docsRetries is the schedule in words.
type docsRetries struct{ waits, attempts, total string }

func docsSchedule(t *testing.T) docsRetries {
	t.Helper()
	var waits []string
	var total time.Duration
	for wait := range strings.SplitSeq(docsDefault(t, "JPINTEL_WEBHOOK_RETRY_SCHEDULE"), ",") {
		d, err := time.ParseDuration(wait)
		if err != nil {
			t.Fatal(err)
		}
		total += d
		waits = append(waits, docsWords(wait))
	}
	last := len(waits) - 1
	return docsRetries{strings.Join(waits[:last], ", ") + " and " + waits[last], docsCount(t, strconv.Itoa(len(waits)+1)), fmt.Sprintf("%.0f hours", total.Hours())}
}

// docsDigits are the most digits before and after the point of an amount.
func docsDigits(t *testing.T, form string) [2]string {
	t.Helper()
	found := regexp.MustCompile(`\[1-9\]\[0-9\]\{0,(\d+)\}.*\[0-9\]\{1,(\d+)\}`).FindStringSubmatch(form)
	if found == nil {
		t.Fatalf("%s is of another form", form)
	}
	before, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return [2]string{strconv.Itoa(before + 1), found[2]}
}

// docsAmount finds numbers that say something: with a unit, in words, or alone in
// a table's cell.
var docsAmount = regexp.MustCompile(`(?i)\b(\d[\d,.]*|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty)\s+(%|seconds?|minutes?|hours?|days?|KiB|MB|bytes|a second|in a row|attempts|requests|digits|delivery attempts|replaced|日間|回)(\s|\b)|\|\s*\d[\d,.]*\s*\|`)

// docsPlain are amounts that say nothing of the program, by the document.
var docsPlain = map[string][]string{
	"docs/delivery-contract.md": {"| 410 |"},
	"docs/integration-guide.md": {"ten minutes old"},
	"docs/terms-webhooks.md":    {"*[30 days']* notice"},
	"docs/money.md":             {"80 % of a limit"},
	"docs/retention.md":         {},
	"docs/usage.md":             {"tells of 80 % and 100 %", "anew nine hours after"},
	// TestDocsSizes and TestDocsVolumes hold these.
	"docs/volumes.md":           {"| 540 | 410 | 950 |", "| 540 | 440 | 980 |", "| 540 | 330 | 870 |", "980 bytes", "= 274 MB", "9.8 MB", "660 MB"},
	"docs/verify/README.md":     {},
	"docs/sending-addresses.md": {"> 30 days before"},
}

// Every number that the documents tell of the schedule, times and limits is the
// program's, and no document tells one that nobody has claimed here.
func TestDocsNumbers(t *testing.T) {
	files := docsFiles(t)
	covered := map[string][][]int{}
	for _, claim := range docsClaims(t) {
		text := files[claim.file]
		found := docsFind(claim.words).FindAllStringSubmatchIndex(text, -1)
		if found == nil {
			t.Errorf("%s: nothing matches %s", claim.file, claim.words)
		}
		for _, at := range found {
			covered[claim.file] = append(covered[claim.file], at[:2])
			if got := strings.Join(strings.Fields(text[at[2]:at[3]]), " "); got != claim.want {
				t.Errorf("%s: %q, want %q (%s)", claim.file, got, claim.want, claim.words)
			}
		}
	}
	for file, plain := range docsPlain {
		text := files[file]
		for _, words := range plain {
			places := docsFind(words).FindAllStringIndex(text, -1)
			if places == nil {
				t.Errorf("%s: there is no %q any more", file, words)
			}
			covered[file] = append(covered[file], places...)
		}
		for _, at := range docsAmount.FindAllStringIndex(text, -1) {
			if !docsWithin(covered[file], at) {
				t.Errorf("%s: nothing holds %q against the program", file, strings.TrimSpace(text[max(0, at[0]-40):at[1]]))
			}
		}
	}
}

// docsFind finds words with something in the place of …; their spaces may be line
// breaks.
func docsFind(words string) *regexp.Regexp {
	pattern := strings.ReplaceAll(regexp.QuoteMeta(words), " ", `\s+`)
	return regexp.MustCompile("(?s)" + strings.Replace(pattern, "…", "(.{1,60}?)", 1))
}

// docsWithin reports whether a number lies in one of the places that are
// accounted for. Its own ends may be those of a table's cell.
func docsWithin(places [][]int, at []int) bool {
	for _, place := range places {
		if place[0] <= at[0]+1 && at[1]-1 <= place[1] {
			return true
		}
	}
	return false
}
