# SPDX-License-Identifier: GPL-2.0
# Makes records in a hash, as a load for benchmarks, and replaces half of them, as objects.py does.
use strict;
use warnings;

sub record {
	my $n = shift;
	my @words = map { "word " . ($n + $_) } 0 .. $n % 7;
	return { number => $n, name => "name of $n", words => \@words, half => $n / 2 };
}

my $count = shift;
my %table = map { ("key $_" => record($_)) } 0 .. $count - 1;
for (my $n = 0; $n < $count; $n += 2) {
	$table{"key $n"} = record($n + $count);
}
my @names = sort map { $_->{name} } values %table;
print scalar(@names), " $names[0]\n";
