<?php

// Verifies the signature of a webhook. It needs PHP 8 and nothing else.
//
// Copy the first part into your receiver and call verify() before you look at
// anything else. The last part is for tests: php verify.php cases.json

declare(strict_types=1);

const SIGNATURE = 'x-jpintel-signature'; // in lower case; another brand has another name
const TOLERANCE = 5 * 60; // seconds, in both directions

/**
 * Reports whether a request comes from us, unchanged and just now.
 *
 * $headers: names to values, such as getallheaders(); the names in any case
 * $body:    the raw bytes as they came: file_get_contents('php://input')
 * $secret:  the signing secret as it was shown to you, "whsec_" included
 * $now:     unix seconds; left out: this machine's clock
 *
 * A request carries two kinds of signatures, made with the same secret. Each
 * kind that is there has to be right, and at least one has to be there.
 */
function verify(array $headers, string $body, string $secret, ?int $now = null): bool
{
    $headers = array_change_key_case($headers, CASE_LOWER);
    $now ??= time();
    $verdicts = [];
    if (isset($headers[SIGNATURE])) {
        $verdicts[] = verify_jpintel($headers, $body, $secret, $now);
    }
    if (isset($headers['webhook-signature'])) {
        $verdicts[] = verify_standard($headers, $body, $secret, $now);
    }
    return $verdicts !== [] && !in_array(false, $verdicts, true);
}

/** t=<seconds>,v1=<hex>[,v1=<hex>…], in any order; others are ignored. */
function verify_jpintel(array $headers, string $body, string $secret, int $now): bool
{
    $timestamp = '';
    $given = [];
    foreach (explode(',', $headers[SIGNATURE]) as $element) {
        [$name, $value] = explode('=', trim($element), 2) + ['', ''];
        if ($name === 't') {
            $timestamp = $value;
        } elseif ($name === 'v1') {
            $given[] = $value;
        }
    }
    return is_recent($timestamp, $now)
        && is_any(hash_hmac('sha256', "$timestamp.$body", $secret), $given);
}

/** Standard Webhooks: v1,<base64>[ v1,<base64>…]; others are ignored. */
function verify_standard(array $headers, string $body, string $secret, int $now): bool
{
    $id = $headers['webhook-id'] ?? '';
    $timestamp = $headers['webhook-timestamp'] ?? '';
    $given = [];
    foreach (preg_split('/\s+/', $headers['webhook-signature']) as $signature) {
        if (str_starts_with($signature, 'v1,')) {
            $given[] = substr($signature, 3);
        }
    }
    $key = base64_decode(preg_replace('/^whsec_/', '', $secret));
    return is_recent($timestamp, $now)
        && is_any(base64_encode(hash_hmac('sha256', "$id.$timestamp.$body", $key, true)), $given);
}

function is_recent(string $timestamp, int $now): bool
{
    return preg_match('/^[0-9]{1,12}$/D', $timestamp) === 1 && abs($now - (int) $timestamp) <= TOLERANCE;
}

/** Tries every signature: while a secret is replaced there are several. */
function is_any(string $expected, array $given): bool
{
    foreach ($given as $signature) {
        if (hash_equals($expected, $signature)) {
            return true;
        }
    }
    return false;
}

// --- for tests ---

/** Reads a case, or a list of them, and prints a verdict for each. */
function main(array $args): void
{
    $cases = json_decode(file_get_contents($args[1] ?? 'php://stdin'), true, 512, JSON_THROW_ON_ERROR);
    foreach (array_is_list($cases) ? $cases : [$cases] as $case) {
        $ok = verify($case['headers'], $case['body'], $case['secret'], $case['now']);
        echo $ok ? 'accepted' : 'rejected', ' ', $case['name'], "\n";
    }
}

if (realpath($_SERVER['SCRIPT_FILENAME']) === __FILE__) {
    main($argv);
}
