# A shell with large arrays that forks in loops: bash forks.sh ENTRIES
declare -A table
for ((i = 0; i < $1; i++)); do
    table[key$i]="value $i $((i * 7919 % 10007)) ........................................"
done
sum=0
for ((i = 0; i < 150; i++)); do
    n=$(echo "${table[key$((i * 613 % $1))]}" | tr -d . | cut -d' ' -f3)
    sum=$((sum + n))
done
# Children that read what the parent goes on changing.
for ((i = 0; i < 40; i++)); do
    (
        total=0
        for ((j = i; j < $1; j += 97)); do text=${table[key$j]}; total=$((total + ${#text})); done
        echo "$i $total" >"part.$i"
    ) &
    for ((j = i; j < $1; j += 501)); do table[key$j]+=" again"; done
    ((i % 4 == 3)) && wait
done
wait
cat part.*
rm -f part.*
echo "$sum ${#table[@]}"
