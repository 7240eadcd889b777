package modelgatetest

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/shopspring/decimal"
)

// What follows changes answers as faults want it. An answer without the member
// that is meant stays as it is.

func truncate(_ *call, o *outgoing, a *action) { o.cut = a.bytes }

func slowBody(_ *call, o *outgoing, a *action) { o.pace = a.wait }

func hugeBody(_ *call, o *outgoing, a *action) { o.stream = a.bytes }

// malformedJSON leaves the last brace out; the length is right.
func malformedJSON(_ *call, o *outgoing, _ *action) { o.body = o.body[:max(0, len(o.body)-1)] }

// trailingGarbage adds what a second writer could have.
func trailingGarbage(_ *call, o *outgoing, _ *action) {
	o.body = append(bytes.Clone(o.body), `{"error":null}`...)
}

func dropRequestID(_ *call, o *outgoing, _ *action) { o.requestID = false }

func wrongContentType(_ *call, o *outgoing, _ *action) {
	o.reply = o.with("Content-Type", "text/html; charset=utf-8")
}

func dateSkew(_ *call, o *outgoing, a *action) { o.date = o.date.Add(a.wait) }

var (
	moneyMember    = regexp.MustCompile(`"(amount|balance|balance_after|spend_limit|usage_in_period|cost)":"(-?[0-9.]+)"`)
	amountMember   = regexp.MustCompile(`"(amount|spend_limit)":"-?[0-9.]+"`)
	currencyMember = regexp.MustCompile(`"currency":"[A-Z]{3}"`)
	idMember       = regexp.MustCompile(`"(id)":"([^"]+)"`)
)

// numberAmount writes money as JSON numbers.
func numberAmount(_ *call, o *outgoing, _ *action) {
	o.body = moneyMember.ReplaceAll(o.body, []byte(`"$1":$2`))
}

// sciAmount writes money with an exponent.
func sciAmount(_ *call, o *outgoing, _ *action) {
	o.body = moneyMember.ReplaceAllFunc(o.body, func(member []byte) []byte {
		m := moneyMember.FindSubmatch(member)
		return []byte(`"` + string(m[1]) + `":"` + scientific(mustMoney(string(m[2]))) + `"`)
	})
}

// scientific is an amount like 2.5E+1.
func scientific(amount decimal.Decimal) string {
	sign := ""
	if amount.IsNegative() {
		sign, amount = "-", amount.Neg()
	}
	all := amount.Coefficient().String()
	exponent := len(all) - 1 + int(amount.Exponent())
	rest := strings.TrimRight(all[1:], "0")
	if rest != "" {
		rest = "." + rest
	}
	plus := ""
	if exponent >= 0 {
		plus = "+"
	}
	return sign + all[:1] + rest + "E" + plus + strconv.Itoa(exponent)
}

// echoAmount says another amount, or spend_limit, than was asked for.
func echoAmount(_ *call, o *outgoing, a *action) {
	o.body = amountMember.ReplaceAll(o.body, []byte(`"$1":"`+escaped(a.text)+`"`))
}

func echoCurrency(_ *call, o *outgoing, a *action) {
	o.body = currencyMember.ReplaceAll(o.body, []byte(`"currency":"`+escaped(a.text)+`"`))
}

// escaped is a text as it is in a JSON string, and in a replacement.
func escaped(text string) string {
	quoted := string(jsonReply(0, text).body)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], "$", "$$")
}

// duplicateKey says the first amount, or the id, twice: with a capital letter the
// second time, or as it is.
func duplicateKey(_ *call, o *outgoing, a *action) {
	member, other := moneyMember, "999999.00"
	if !member.Match(o.body) {
		member, other = idMember, "xxx_00000000000000000000000000"
	}
	at := member.FindSubmatchIndex(o.body)
	if at == nil {
		return
	}
	name := string(o.body[at[2]:at[3]])
	if a.text != "exact" {
		name = strings.ToUpper(name[:1]) + name[1:]
	}
	second := `,"` + name + `":"` + other + `"`
	o.body = bytes.Join([][]byte{o.body[:at[1]], o.body[at[1]:]}, []byte(second))
}

// writtenPage is a list that has been written.
type writtenPage struct {
	Data       []json.RawMessage `json:"data"`
	NextCursor *string           `json:"next_cursor"`
}

// relist changes an answer that is a list.
func (o *outgoing) relist(change func(*writtenPage)) {
	var p writtenPage
	if json.Unmarshal(o.body, &p) != nil || p.Data == nil {
		return
	}
	change(&p)
	o.body = jsonReply(0, p).body
}

// listOmit leaves the row with an id out.
func listOmit(_ *call, o *outgoing, a *action) {
	o.relist(func(p *writtenPage) {
		kept := []json.RawMessage{}
		for _, row := range p.Data {
			if m := idMember.FindSubmatch(row); m == nil || string(m[2]) != a.text {
				kept = append(kept, row)
			}
		}
		p.Data = kept
	})
}

// listDup says the first row twice.
func listDup(_ *call, o *outgoing, _ *action) {
	o.relist(func(p *writtenPage) {
		if len(p.Data) > 0 {
			p.Data = append(p.Data[:1:1], p.Data...)
		}
	})
}

// cursorLoop makes a page that is followed by itself.
func cursorLoop(c *call, o *outgoing, _ *action) {
	cursor := c.r.URL.Query().Get("cursor")
	if cursor == "" {
		cursor = place{time.UnixMilli(0), "-"}.cursor()
	}
	o.relist(func(p *writtenPage) { p.NextCursor = &cursor })
}
