package webhook

import (
	"bytes"
	"encoding/json"
	flags "flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"jpintel/store"
)

var update = flags.Bool("update", false, "write the goldens anew")

// contract is the catalogue as docs/delivery-contract.md promises it: a change
// here breaks customers.
var contract = []struct {
	typ        Type
	scope      Scope
	subject    string
	data       string // the names of its members
	attributes string
}{
	{"program.created", ScopeAll, "program", "unified_id primary_name authority_level prefecture amount_max_man_yen source_url", "authority_level prefecture target_type unified_id"},
	{"program.updated", ScopeAll, "program", "unified_id changed_fields previous_checksum current_checksum", "authority_level prefecture target_type unified_id"},
	{"program.matching_filter", ScopeCustomer, "program", "unified_id filter_id matched_fields", "authority_level prefecture target_type unified_id"},
	{"adoption.published", ScopeAll, "adoption", "adoption_id program_id year count_added evidence_url", "authority_level prefecture program_id target_type unified_id year"},
	{"exclusion_rule.added", ScopeCustomer, "exclusion_rule", "rule_id program_a program_b kind severity", "kind severity"},
	{"tier.quota.warning", ScopeCustomer, "customer", "customer_id tier usage_today limit resets_at", ""},
	{"usage.finalized", ScopeCustomer, "usage_record", "customer_id usage_record_id period_start period_end currency final_cost", ""},
	{"credit.adjustment_posted", ScopeCustomer, "ledger_entry", "customer_id adjustment_id kind currency amount balance_after source_id", ""},
	{"budget.threshold_crossed", ScopeCustomer, "budget", "customer_id period currency threshold_percent spend limit", ""},
	{"key.status_changed", ScopeCustomer, "model_key", "customer_id key_id previous_status current_status version", ""},
	{"customer.provisioned", ScopeCustomer, "customer", "customer_id group_id key_id currency spend_limit", ""},
	{"webhook.subscription_disabled", ScopeCustomer, "webhook_subscription", "subscription_id url_origin disabled_reason disabled_at", ""},
	{"webhook.test", ScopeNone, "webhook_subscription", "", ""},
}

func TestCatalogue(t *testing.T) {
	for i, c := range contract {
		e, err := GetEventType(c.typ)
		if err != nil {
			t.Error(err)
			continue
		}
		if e.Type != c.typ || e.Scope != c.scope || e.Subject != c.subject || strings.Join(e.Attributes, " ") != c.attributes {
			t.Errorf("%s: got %s, %s, %q", c.typ, e.Scope, e.Subject, e.Attributes)
		}
		if e.Description == "" || e.Sensitivity == "" || e.Attributes == nil {
			t.Errorf("%s: not described: %+v", c.typ, e)
		}
		if crossing := c.typ == TypeTierQuotaWarning || c.typ == TypeBudgetThresholdCrossed; (e.Crossing != "") != crossing {
			t.Errorf("%s: crossing rule %q", c.typ, e.Crossing)
		}
		if order[i].Type != c.typ {
			t.Errorf("%s stands where %s should", order[i].Type, c.typ)
		}
	}
	if len(order) != len(contract) {
		t.Errorf("%d types, want %d", len(order), len(contract))
	}
	listed := EventTypes()
	if len(listed) != len(contract)-1 || slices.ContainsFunc(listed, func(e EventType) bool { return e.Type == TypeTest }) {
		t.Errorf("%d types are listed, want all but the test ping", len(listed))
	}
	_, err := GetEventType("program.deleted")
	wantCode(t, err, store.CodeNotFound, `"program.deleted"`)
}

// members are the JSON names of a payload's fields.
func members(p Payload) []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeOf(p)) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); !f.Anonymous && name != "-" {
			names = append(names, name)
		}
	}
	return names
}

func TestPayloadsAndSchemasAgree(t *testing.T) {
	for _, c := range contract {
		e := catalogue[c.typ]
		want := strings.Fields(c.data)
		if got := members(e.example); !slices.Equal(got, want) {
			t.Errorf("%s: fields %q, want %q", c.typ, got, want)
		}
		var schema struct {
			Schema     string         `json:"$schema"`
			Title      string         `json:"title"`
			Properties map[string]any `json:"properties"`
			Required   []string       `json:"required"`
		}
		if err := json.Unmarshal(e.Schema, &schema); err != nil {
			t.Errorf("%s: %v", c.typ, err)
		}
		for _, name := range want {
			if _, ok := schema.Properties[name]; !ok {
				t.Errorf("%s: the schema has no %s", c.typ, name)
			}
		}
		if len(schema.Properties) != len(want) || !slices.Equal(schema.Required, want) {
			t.Errorf("%s: schema has %d properties, requires %q; want %q", c.typ, len(schema.Properties), schema.Required, want)
		}
		if schema.Schema != "https://json-schema.org/draft/2020-12/schema" || schema.Title != string(c.typ) {
			t.Errorf("%s: the schema calls itself %q, %q", c.typ, schema.Schema, schema.Title)
		}
		if err := e.validate(e.Example); err != nil {
			t.Errorf("%s: the example: %v", c.typ, err)
		}
	}
}

// A member that is missing or null is the publisher's mistake, whatever the
// type; one that the schema does not know may come with a later version.
func TestSchemasRequireEveryMember(t *testing.T) {
	nullable := []string{"authority_level", "prefecture", "amount_max_man_yen"}
	for _, c := range contract {
		e := catalogue[c.typ]
		for _, name := range strings.Fields(c.data) {
			var data map[string]any
			if err := json.Unmarshal(e.Example, &data); err != nil {
				t.Fatal(err)
			}
			check := func(what string, valid bool) {
				t.Helper()
				text, err := json.Marshal(data)
				if err != nil {
					t.Fatal(err)
				}
				if err := e.validate(text); (err == nil) != valid {
					t.Errorf("%s with %s %s: %v", c.typ, name, what, err)
				}
			}
			data["added_later"] = 1
			check("beside another", true)
			data[name] = nil
			check("null", slices.Contains(nullable, name))
			delete(data, name)
			check("missing", false)
		}
	}
}

// The first five types carry no customer and no personal data.
func TestPrivacy(t *testing.T) {
	for i, c := range contract {
		e := catalogue[c.typ]
		named := bytes.Contains(e.Example, []byte("customer_id")) || bytes.Contains(e.Example, []byte("cus_")) || bytes.Contains(e.Schema, []byte("customer_id"))
		if i < 5 && (named || e.Sensitivity != sensitivityPublic) {
			t.Errorf("%s: %s, %s", c.typ, e.Example, e.Sensitivity)
		}
		if i >= 5 && e.Scope == ScopeCustomer && e.Sensitivity != sensitivityCustomer {
			t.Errorf("%s: %s", c.typ, e.Sensitivity)
		}
	}
}

// Data as customers get it, byte for byte.
func TestEventsGolden(t *testing.T) {
	var b bytes.Buffer
	for i, e := range order {
		fmt.Fprintf(&b, "%s\n%q: %s", map[bool]string{true: "{", false: ","}[i == 0], e.Type, e.Example)
	}
	b.WriteString("\n}\n")
	if *update {
		if err := os.WriteFile("../testdata/golden/events.json", b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := testdata(t, "golden", "events.json"); !bytes.Equal(b.Bytes(), want) {
		t.Errorf("got %s\nwant %s", b.Bytes(), want)
	}
}

func TestValidateTypes(t *testing.T) {
	got, err := validateTypes([]Type{TypeTierQuotaWarning, TypeProgramCreated, TypeTierQuotaWarning})
	if want := []Type{TypeProgramCreated, TypeTierQuotaWarning}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	for _, c := range []struct {
		types []Type
		text  string
	}{
		{nil, "at least one"},
		{[]Type{}, "at least one"},
		{[]Type{TypeProgramCreated, "program.deleted"}, `"program.deleted"`},
		{[]Type{"*"}, `"*"`},
		{[]Type{""}, `""`},
		{[]Type{TypeTest}, `"webhook.test"`},
	} {
		_, err := validateTypes(c.types)
		wantCode(t, err, store.CodeInvalid, c.text)
	}
}
